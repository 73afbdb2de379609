"""The listener for the other nodes of the cluster: Kafka's frames, after both sides have proved their identity."""
