"""Produce keys: a record that is sent again with its key gets the place of the first one, and nothing is appended.

A key belongs to a tenant and a topic and is kept for a window of time, through crashes too. ``idempotency.py`` is the door and
the rules, ``keys.py`` the keys in memory, ``stored.py`` how a key lies in the internal topic ``__idempotency``, ``search.py``
how a record is found whose place a crash left unnoted.
"""
