"""The real implementations of ``ports.py``: clock, disk, randomness, the event loop's turns, group commit, housekeeping."""
