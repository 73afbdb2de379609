"""Translation between protocols and the core. There are no rules here: a gateway decodes, calls the core, and encodes.

The folders of the gateways share file names: ``gateway.py`` listens and holds the connections, ``connection.py`` is one of them,
``errors.py`` maps the reasons of the core, ``answers.py`` encodes, and ``handlers`` or a file per resource have the calls.
"""
