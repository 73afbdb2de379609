"""JSON lines over TCP: one request a line, one answer a line, in order. It can be typed into ``nc``."""
