"""Translation between a protocol and the core. No rule lives here: a gateway decodes, calls the core, and encodes.

Each gateway's folder has the same few file names: ``gateway.py`` listens and holds the connections, ``connection.py`` is
one of them, ``errors.py`` maps the reasons of the core, ``handlers/`` has a file per call.
"""
