"""The Spark connector beside ceilings: the same queries on a source that yields ready-made Arrow batches and a sink that drops them."""
