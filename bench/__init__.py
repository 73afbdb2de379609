"""Penstock and its peers, side by side in one run: `python -m bench`, or `make bench`.

What may live here: starting and stopping the systems, the order of the runs, the tables. How a Kafka-protocol broker is loaded and
measured lies in `penstock.bench`, which users have too.
"""
