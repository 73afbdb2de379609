"""Replicated state: the records of a compacted internal topic, and the node that leads a partition of it keeps what they say in memory.

============  ==========================================================================================
runtime.py    a kind of state and its shards: loading, serving, writing, unloading
topic.py      an internal topic: appending, waiting for a commit, replaying
leading.py    which partitions this node leads, and has the runtime load and unload
jobs.py       work that is longer than a turn of the event loop
deadlines.py  timers that are cheap to reset
============  ==========================================================================================
"""
