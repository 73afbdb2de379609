"""The rules by which a partition has several copies and one leader. Who leads and who is in sync is agreed in the metadata store.

``records.py`` and ``election.py`` say how the agreed record may change, ``placement.py`` where copies go, ``in_sync.py`` what a leader may
call committed, ``follower.py`` how a copy follows, ``rules.py`` names the rules that a test can turn off to see that it would notice.
"""
