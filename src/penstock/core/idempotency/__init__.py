"""Produce keys: if a record is sent again with its key, nothing is appended, and the answer is the offset of the first one.

A key belongs to a tenant and a topic, and is remembered for a window of time, across crashes too. ``idempotency.py`` is the entry point and
has the rules, ``attempts.py`` the keys in use, ``appending.py`` the appends of records that may be in their log already, ``keys.py`` the
keys in memory, and ``stored.py`` the format of a key in the internal topic ``__idempotency``.
"""
