"""Work queues: a topic worked by a group, record by record, with leases. No protocol and no I/O in here.

``queues.py`` is the door, ``upkeep.py`` the life behind it. A queue (``queue.py``) hands the records of its partitions (``partition.py``) to workers. What is
known of a record lies in blocks (``block.py``), which ``state_log.py`` stores in the internal topic ``__queue_state`` in the
layouts of ``stored.py``. The floor, below which everything is finished, is the group's committed offset and nothing else.
"""
