"""Exactly-once sinks: batches are staged in a topic that readers cannot see, and one commit appends them to their target topics, once.

A commit (``commits.py``) checks what is to be appended (``checks.py``), stores its intent in ``__sinks`` (``stored.py``), appends the
staged batches (``staging.py``) with the sink's own producer id, epoch and sequence numbers, and stores the batch id as the last one.
After a crash, an open intent is completed from where it stopped. Long work is split over turns of the event loop
(``core/coordinators/jobs.py``). ``sinks.py`` is the entry point.
"""
