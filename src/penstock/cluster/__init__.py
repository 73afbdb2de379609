"""A node among others: its place in the cluster, the controller's work, the connections between nodes. The rules are the core's.

``node.py`` puts it together, and is what the server starts. ``membership.py`` keeps the node registered, ``controller.py`` is what the elected one
of them does, ``in_sync_changes.py`` has the in-sync sets agreed on, ``fetching.py`` copies from leaders over ``links.py``.
Nothing of this is imported by a broker that is alone.
"""
