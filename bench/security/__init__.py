"""What security costs: TLS, access rules and encryption at rest, each compared with the same broker without it."""
