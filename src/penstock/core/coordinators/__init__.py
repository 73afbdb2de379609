"""Replicated state: it is stored in a compacted internal topic, and the leader of each partition keeps its state in memory.

============  ==========================================================================================
runtime.py    a kind of state and its shards: loading, serving, writing, unloading
topic.py      an internal topic: appending, waiting for a commit, replaying
leading.py    which partitions this node leads; the runtime loads and unloads them
jobs.py       work that is longer than a turn of the event loop
deadlines.py  timers that are cheap to reset
============  ==========================================================================================
"""
