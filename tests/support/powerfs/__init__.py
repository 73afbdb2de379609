"""A file system whose power can be cut: it keeps what was written apart from what was synced, and loses the difference.

``state`` is the model (no FUSE in it), ``survival`` decides what is left after a cut, ``server`` is the process that mounts it,
``disk`` is what a test uses. See docs/decisions/0013-power-loss-file-system.md.
"""
