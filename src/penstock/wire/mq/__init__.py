"""The messages of the gRPC API, generated from ``proto/mq.proto`` by ``tools/generate_protos.py``."""
