"""The one exception that decoding bytes from a peer may raise.

Invariant: whatever the bytes, a decoder in `wire/` either returns a message or raises `ProtocolViolation`. A gateway
that catches it closes the connection; nothing else (IndexError, struct.error, UnicodeDecodeError, MemoryError) leaks.
"""


class ProtocolViolation(Exception):
    """The peer sent bytes that do not follow the protocol; the text says what was wrong, never what was in them."""
