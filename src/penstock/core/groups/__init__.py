"""Groups: readers that share the partitions of their topics, and the offsets up to which they have read.

=================  ==========================================================================================
requests.py        the words between a gateway and these rules
coordinator.py     GroupCoordinator, the door for every gateway: it finds the group and hands on
directory.py       which groups exist, whether their partition of the offsets topic is loaded, how they are stored
group.py           one group: members, votes, generation, offsets; no rules of time
rebalance.py       the life of a membership: join, sync, heartbeat, leave, time-outs
shared.py          membership that the broker assigns: readers that only say "I am here" and are given partitions
shared_members.py  who of a group reads which partitions then
commits.py         committed offsets: commit, fetch, delete, expiry
offsets.py         the committed offsets of one group
stored.py          the records that lie in the offsets topic
storage.py         where they lie: the port to the offsets topic
loading.py         from records back to groups
deadlines.py       timers that are cheap to reset
subscription.py    the little these rules read of a member's own bytes
=================  ==========================================================================================

State is a log too: what must outlive the process is a record in the compacted topic ``__consumer_offsets`` before anybody
is told of it. Time is read from the clock that is handed in: monotonic for what is waited for, wall time for what is stored.

The directory, the storage and the offsets know nothing of how a group shares its partitions.
"""
