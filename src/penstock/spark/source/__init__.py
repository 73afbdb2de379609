"""Reads topics as Spark's own Kafka connector does, option by option.

A query goes through these in order: ``settings.py`` reads its options, ``selection.py`` finds the partitions that they name,
``bounds.py`` says where reading starts and ends, ``offsets.py`` asks the broker for that, ``rates.py`` says how much a micro-batch may take,
``plan.py`` cuts the rest into tasks (``pushdown.py`` narrows them, ``tiers.py`` knows what is in a lake), and ``task.py`` reads one. ``batch.py`` and ``stream.py``
are what Spark calls; ``table.py`` is what the data source calls.
"""
