"""One partition: appending, reading, what is committed, and how its leader is asked about it from elsewhere."""
