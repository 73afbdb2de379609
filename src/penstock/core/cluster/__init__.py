"""The rules for partitions with several replicas, of which one leads. The leaders and in-sync sets are agreed on in the metadata store.

``records.py`` and ``election.py`` define how a partition's record may change, ``placement.py`` where replicas go, ``in_sync.py`` which records
are committed, and ``follower.py`` how a replica follows. ``rules.py`` has the switches with which tests turn off single rules.
"""
