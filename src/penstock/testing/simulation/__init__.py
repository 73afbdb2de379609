"""A whole cluster in one process, on a clock, a network, disks and a metadata store that a seed decides about.

Everything that runs is the real thing: brokers, controllers, coordinators, gateways, the connections between nodes. What is simulated is the
world: ``loop.py`` is the event loop and the processes on it, ``network.py`` what is between them. The same seed is the same history.
"""
