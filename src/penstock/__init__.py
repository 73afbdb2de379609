"""Penstock: a durable message broker that every Kafka client can use.

Start reading at ``server.py``: it builds a running broker out of the other packages.
"""

__version__ = "0.1.0"
