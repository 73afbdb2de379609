"""What several nodes cost and withstand: three beside one and beside Apache Kafka with three, idle, and when a node fails."""
