"""Load for the APIs beside Kafka's: HTTP, JSON lines over TCP, gRPC, and queues worked over HTTP.

What may live here: requests as bytes, what counts their answers, and the rows made of both. Every request is made before the clock starts,
or costs no more than a patch of a few bytes; HTTP/2 and protobuf are written by hand, because a client library would be measured instead.
Topics are made, filled and counted over the Kafka protocol, so a row's records are looked up through another door than they came in by.
"""
