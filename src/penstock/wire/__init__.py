"""Bytes in, messages out, and back: the formats of the protocols, and nothing else.

What may live here: codecs that turn buffers into messages and messages into buffers, and the one exception they raise
(`errors.ProtocolViolation`). What may not: sockets, clocks, disks, asyncio, or a decision about what a request means;
those belong to `gateways/` and below. Every decoder here can be fed any bytes at all.

`kafka/` holds the Kafka protocol; start at `kafka/apis.py`.
"""
