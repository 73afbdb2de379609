"""Sockets, for the gateways and for the connections between nodes: opening a port, and from bytes to frames."""
