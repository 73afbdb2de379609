"""The record batch, Kafka's format 2: what clients send, what lies on disk, what replicas copy.

Here lives what knows the inside of a batch: its header (``batch``), its records one by one (``records``), making one
(``builder``), its codecs (``compression``, ``recompress``), what a topic may demand of its records (``validate``), and which
partition a key belongs to (``partitioner``). Bytes in, bytes out: no files, no sockets, no clock.
"""
