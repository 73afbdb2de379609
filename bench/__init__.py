"""Penstock and its peers, side by side in one run: `python -m bench`, or `make bench`.

What may live here: starting and stopping the systems, the order of the runs, the tables. The load and the measurement of a broker are in
`penstock.bench`, which users have too.
"""
