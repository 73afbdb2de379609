"""Exactly-once sinks: batches are staged where nobody reads them, and one commit appends them to their topics, once.

The way of a commit (``commits.py``): what is to be appended is checked (``checks.py``), the intent is stored in ``__sinks``
(``stored.py``), the staged batches are appended under the sink's own producer id, epoch and sequence, and the batch id is
stored as the last one. After a crash an open intent is carried out from where its targets ended (``progress.py``). Everything
is cut into pieces that a turn of the event loop can afford (``jobs.py``). ``sinks.py`` is the door.
"""
