"""The error that ends a measurement."""


class BenchError(Exception):
    """The broker, or the setup, does not allow the measurement; the text says what to do."""
