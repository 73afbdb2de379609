"""Queues: topics that a group consumes record by record, with leases. Without protocols and I/O.

Gateways use ``queues.py``; ``upkeep.py`` loads, unloads and maintains the queues. A queue (``queue.py``) delivers the records of its
partitions (``partition.py``) to workers (``workers.py``, ``dispatch.py``). The state of records is in blocks (``block.py``), which
``state_log.py`` stores in the internal topic ``__queue_state`` in the layouts of ``stored.py``. The floor, below which all records
are finished, is the group's committed offset (``floors.py``).
"""
