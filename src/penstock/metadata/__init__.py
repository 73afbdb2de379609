"""What the nodes of a cluster agree on, behind one port: keys, values, compare-and-set, and a feed of changes.

``port.py`` is the whole of what the rules may know. ``sqlite.py`` is the store of a broker that is alone;
``memory.py`` forgets everything and is for tests. All keep the same contract (``tests/unit/metadata``).
"""
