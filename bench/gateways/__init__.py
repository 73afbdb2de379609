"""Penstock's gateways beside Redis in one run: `python -m bench.gateways`, or `make bench-gateways`.

What may live here: the order of the runs, what Redis does in the same shapes, the tables. The load is in `penstock.bench.gateways`,
which users have too.
"""
