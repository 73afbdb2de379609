"""The Kafka wire protocol: message bodies (generated), headers and frames, and the formats inside group messages.

- `apis.py`: every API with its versions and its four function tables; the place to start.
- `*_generated.py`: one module per API, written by tools/generate_kafka_codec.py. To add a version or an API, change
  the table in that script (or upgrade kio), run it and commit the result; never edit these files.
- `headers.py`: request and response headers, and the length-prefixed frame around a body.
- `primitives.py`: what the generated code calls, and the limits on what a peer may announce.
- `consumer_protocol.py`: subscription and assignment, the bytes that classic consumers exchange through the broker.
- `fields.py`: the small readers and writers that the two hand-written codecs share.
"""
