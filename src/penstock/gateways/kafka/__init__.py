"""The Kafka protocol over TCP: framing, order of answers, back-pressure, and a handler per API."""
