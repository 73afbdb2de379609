"""Writing DataFrames to topics: ``df.write`` and ``df.writeStream`` with ``format("penstock")``.

A task converts Arrow batches to record batches (``rows.py``, ``routing.py``, ``encoding.py``), and either stages them in the broker or
produces them (``staging.py``). Staged batches are invisible until the driver commits them with the name of the query and the number of
the micro-batch (``commit.py``). The broker stores both, so a repeated micro-batch appends nothing.
"""
