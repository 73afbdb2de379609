"""Penstock's gateways beside Redis in one run: `python -m bench.gateways`, or `make bench-gateways`.

What may live here: the order of the runs, what Redis does in the same shapes, the tables. How the gateways are loaded lies in
`penstock.bench.gateways`, which users have too.
"""
