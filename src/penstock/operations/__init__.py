"""Everything a caller can ask of the broker, as values: one frozen struct for each operation, beside the struct of its result.

Gateways decode bytes to an operation and encode its result, ``penstock.client`` decodes the same results, and nodes send
operations to each other. What an operation does is in ``core/operations/``; ``catalogue.py`` lists all of them. Only the leaf modules
and ``records`` are imported here.
"""
