"""DriftQ-Core's API under ``/v1``, with additions of our own: queues, dead letters, sinks, the cluster."""
