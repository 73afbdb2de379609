"""What the nodes of a cluster agree on, with one interface: keys, values, compare-and-set, and a feed of changes.

``port.py`` is all that the rules may use. ``sqlite.py`` is the store of a broker that is alone;
``memory.py`` is not durable and is for tests. All keep the same contract (``tests/unit/metadata``).
"""
