"""Reads topics as Spark's own Kafka connector does, option by option.

A query uses these modules in order: ``settings.py`` reads its options, ``selection.py`` finds the partitions that they select,
``bounds.py`` determines where reading starts and ends, ``offsets.py`` asks the broker for the offsets, ``rates.py`` limits a micro-batch,
``plan.py`` divides the rest into tasks (``pushdown.py`` applies filters, ``tiers.py`` adds what is in a lake), and ``task.py`` reads one.
Spark calls ``batch.py`` and ``stream.py``; the data source calls ``table.py``.
"""
