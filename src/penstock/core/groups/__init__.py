"""Consumer groups: members that share the partitions of their topics, and the offsets up to which they have read.

=================  ==========================================================================================
requests.py        requests to the coordinator, and their results
coordinator.py     GroupCoordinator: the groups of a node, as gateways use them
directory.py       the groups that exist, and how they are stored
group.py           one group: members, votes, generation, offsets; knows nothing of time
rebalance.py       Kafka's classic group protocol: join, sync, heartbeat, leave, expiry
shared.py          membership with partitions that the broker assigns
shared_members.py  how the broker assigns them
commits.py         committed offsets: commit, fetch, delete, expiry
offsets.py         the committed offsets of one group
stored.py          the records of the offsets topic
loading.py         loads groups from these records
subscription.py    the topics and partitions in a consumer's metadata
registry.py        groups that were registered for a topic by name
configs.py         configs of groups
=================  ==========================================================================================

State that must outlive the process is a record in the compacted topic ``__consumer_offsets`` before a caller gets the result.
Deadlines use the monotonic clock, and stored times the wall clock.
"""
