"""One partition on disk, and nothing of what it means: no topic names, no high watermark, no protocol.

A file for each concept. ``log.py`` is what the core sees, with ``reader.py``, ``sync.py`` and ``cutting.py`` as its parts;
``segment.py``, ``index.py`` and ``scan.py`` know the bytes; ``recovery.py`` and ``checkpoint.py`` bring a log back after a crash;
``retention.py``, ``compaction.py`` and ``cleaning.py`` make it smaller; ``manager.py`` has all logs of a node; ``inspect.py`` looks at
them from outside.
"""
