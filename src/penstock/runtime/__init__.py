"""The real world behind ``ports.py``: clock, disk, randomness, the event loop's turns, group commit, housekeeping, signals."""
