"""A node of a cluster with several nodes: its registration, the controller, and the connections to other nodes. The rules are in the core.

``node.py`` puts the parts together for the server. ``registration.py`` keeps the node registered, ``controller.py`` is the work of the elected
controller, ``in_sync_changes.py`` changes in-sync sets in the metadata store, ``fetching.py`` copies from leaders, and ``links.py`` has the
connections. A broker that is alone imports none of this.
"""
