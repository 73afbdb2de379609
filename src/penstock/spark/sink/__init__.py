"""Writing DataFrames to topics: ``df.write`` and ``df.writeStream`` with ``format("penstock")``.

A task turns Arrow batches into record batches (``rows.py``, ``routing.py``, ``encoding.py``) and either stages them with the broker or
produces them at once (``staging.py``). What is staged is seen by nobody until the driver commits it under the query's
name and the number of its batch (``commit.py``); the broker remembers both, so a batch that comes again appends nothing.
"""
