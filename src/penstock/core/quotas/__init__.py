"""Quotas: how many bytes, how much time, how many changes and how many connections a client may use, by Kafka's rules."""
