"""HTTP: the listener in ``server/``, and the two APIs that it serves in ``tarantoolmq/`` and ``v1/``, a file per resource."""
