"""The gRPC gateway: the service of ``proto/mq.proto``. ``gateway`` listens, ``service`` has the table of calls.

Importing ``gateway`` imports grpc, which takes a tenth of a second, so it is imported only if the listener is on.
"""
