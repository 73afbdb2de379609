"""The gRPC gateway: the service of ``proto/mq.proto``. ``gateway`` listens; a file per kind of call; ``records`` translates.

Importing ``gateway`` imports grpc, which takes a tenth of a second: only a broker that has the listener on does it.
"""
