"""The record batch, Kafka's format 2: what clients send, segments store and replicas copy.

This package contains everything that knows the inside of a batch: its header (``batch``), its records (``records``), building
one (``builder``), its codecs (``compression``), and which partition a key belongs to (``partitioner``). Pure functions on
bytes: no files, no sockets, no clock.
"""
