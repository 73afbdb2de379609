"""The one error that ends a measurement."""

from __future__ import annotations


class BenchError(Exception):
    """The broker, or the setup, does not allow the measurement; the text says what to do."""
