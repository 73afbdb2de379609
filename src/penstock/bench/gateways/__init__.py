"""Load for the other APIs: HTTP, JSON lines over TCP, gRPC, and queues over HTTP.

What may live here: requests as bytes, what counts their responses, and the workloads made of both. Every request is made before the clock
starts, or costs no more than a patch of a few bytes; HTTP/2 is written by hand, because a client library would be measured instead.
Topics are filled and counted over the Kafka protocol, so what a row wrote is checked through another API than it was written by.
"""
