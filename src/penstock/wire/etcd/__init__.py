"""Messages of etcd's client protocol: generated from ``proto/etcd.proto`` by ``tools/generate_protos.py``."""
