"""A whole cluster in one process, with a clock, a network, disks and a metadata store that are driven by a seed.

Brokers, controllers, coordinators, gateways and the connections between nodes are the real code. The environment is simulated:
``loop.py`` has the event loop and the processes on it, ``network.py`` the network. The same seed produces the same history.
"""
