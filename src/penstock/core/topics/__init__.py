"""Topics: what there is, what may be asked of it, and how the metadata store holds it."""
