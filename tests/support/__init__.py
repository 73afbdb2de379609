"""What several suites share: waiting with a deadline, and running real clients."""
