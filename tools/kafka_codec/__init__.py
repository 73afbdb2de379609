"""The parts of tools/generate_kafka_codec.py: `schema` reads the facts, the others turn them into source code."""
