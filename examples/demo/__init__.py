"""A shop on Penstock and Spark: ``make demo``. The pipeline is ``orders.toml``; the shop around it is ``shop.py``."""
