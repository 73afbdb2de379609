"""Replicated state: the records of a compacted internal topic, and the node that leads a partition of it keeps what they say in memory.

============  ==========================================================================================
topic.py      an internal topic: appending, waiting for a commit, replaying
leading.py    which partitions this node leads, and what it loads and unloads for that
jobs.py       work that is longer than a turn of the event loop
deadlines.py  timers that are cheap to reset
============  ==========================================================================================
"""
