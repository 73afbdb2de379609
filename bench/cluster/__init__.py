"""What several nodes cost and bear: three beside one, beside Apache Kafka with three, idle, and when a node is killed."""
