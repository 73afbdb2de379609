"""Topics: their rules, their configs, and their records in the metadata store."""
