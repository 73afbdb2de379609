"""Sockets, as the gateways and the connections between nodes share them: taking a port, and from bytes to frames."""
