"""JSON lines over TCP: each request is a line, and so is each answer, in order. Requests can be typed into ``nc``."""
