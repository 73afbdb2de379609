"""What other nodes of the cluster ask this one: Kafka's frames, on a listener of their own, after both sides have proved who they are."""
