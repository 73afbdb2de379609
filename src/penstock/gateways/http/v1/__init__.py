"""DriftQ-Core's API under ``/v1``, with Penstock's additions: queues, dead letters, sinks, the cluster."""
