"""Every Kafka API the codec covers: versions, header versions, and the functions for bodies in both directions.

A gateway reads a request and answers it:

    header, pos = decode_request_header(frame_bytes)
    api = API[header.api_key]                                    # KeyError: no such API in the codec
    request = api.decode_request(frame_bytes, pos, header.api_version)
    parts = api.encode_response(response, header.api_version)    # a list of buffers; large records stay where they are
    transport.writelines(frame(header.correlation_id, api.response_header_version(header.api_version), parts))

A hot caller picks the function once, with its types, from the API's own module:

    from penstock.wire.kafka.produce_generated import DECODE_REQUEST
    decode = DECODE_REQUEST[9]                                   # decode(buf, pos) -> ProduceRequest

Which APIs and versions are advertised is the gateway's decision; `Api.min_version` and `max_version` are only what
the codec can read and write. To add an API or a version: tools/generate_kafka_codec.py. Codec modules are imported
when first used, so that a broker pays only for the APIs that its clients speak.
"""

import importlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

from penstock.types import Buffer
from penstock.wire.errors import ProtocolViolation
from penstock.wire.kafka.api_table_generated import API_TABLE, ApiKey

FLEXIBLE_NEVER: Final = 1 << 15
"""Stands for "no version is flexible": one more than the largest version number."""

FLEXIBLE_FROM: Final[dict[int, int]] = {
    int(key): FLEXIBLE_NEVER if flexible is None else flexible for key, _, _, _, _, flexible in API_TABLE
}
"""By API key: the first version with compact lengths, tagged fields and the longer headers."""

DecodeTable = dict[int, Callable[[Buffer, int], Any]]
EncodeTable = dict[int, Callable[[Any], list[Buffer]]]


class Api:
    """One API. The message classes differ by API, so here they are `Any`; the generated modules are typed."""

    def __init__(self, key: ApiKey, name: str, module: str, min_version: int, max_version: int) -> None:
        self.key: Final = key
        self.name: Final = name
        self.min_version: Final = min_version
        self.max_version: Final = max_version
        self.first_flexible: Final = FLEXIBLE_FROM[key]
        self._module: Final = f"penstock.wire.kafka.{module}_generated"

    def __repr__(self) -> str:
        return f"<Api {self.name} {self.min_version}-{self.max_version}>"

    @cached_property
    def decode_request_table(self) -> DecodeTable:
        """By version: `decode(buf, pos) -> Request`."""
        table: DecodeTable = importlib.import_module(self._module).DECODE_REQUEST
        return table

    @cached_property
    def encode_request_table(self) -> EncodeTable:
        """By version: `encode(request) -> list of buffers`."""
        table: EncodeTable = importlib.import_module(self._module).ENCODE_REQUEST
        return table

    @cached_property
    def decode_response_table(self) -> DecodeTable:
        """By version: `decode(buf, pos) -> Response`."""
        table: DecodeTable = importlib.import_module(self._module).DECODE_RESPONSE
        return table

    @cached_property
    def encode_response_table(self) -> EncodeTable:
        """By version: `encode(response) -> list of buffers`."""
        table: EncodeTable = importlib.import_module(self._module).ENCODE_RESPONSE
        return table

    def covers(self, version: int) -> bool:
        """Whether the codec has this version."""
        return self.min_version <= version <= self.max_version

    def response_header_version(self, version: int) -> int:
        """0, or 1 for a flexible version; ApiVersions always answers with 0."""
        return 1 if version >= self.first_flexible and self.key != ApiKey.API_VERSIONS else 0

    def decode_request(self, buf: Buffer, pos: int, version: int) -> Any:
        """Read a request body; raises ProtocolViolation, also for a version the codec does not have."""
        decode = self.decode_request_table.get(version)
        if decode is None:
            raise self._unknown_version(version)
        return decode(buf, pos)

    def decode_response(self, buf: Buffer, pos: int, version: int) -> Any:
        """Read a response body; raises ProtocolViolation, also for a version the codec does not have."""
        decode = self.decode_response_table.get(version)
        if decode is None:
            raise self._unknown_version(version)
        return decode(buf, pos)

    def encode_request(self, request: Any, version: int) -> list[Buffer]:
        """Write a request body. Fields that this version does not have are left out."""
        return self.encode_request_table[version](request)

    def encode_response(self, response: Any, version: int) -> list[Buffer]:
        """Write a response body. Fields that this version does not have are left out."""
        return self.encode_response_table[version](response)

    def _unknown_version(self, version: int) -> ProtocolViolation:
        return ProtocolViolation(
            f"{self.name} version {version} is unknown; use {self.min_version} to {self.max_version}"
        )


API: Final[dict[int, Api]] = {
    int(key): Api(key, name, module, min_version, max_version)
    for key, name, module, min_version, max_version, _flexible in API_TABLE
}
"""Every API by key. An `ApiKey` works as the key too."""

__all__ = ["API", "FLEXIBLE_FROM", "FLEXIBLE_NEVER", "Api", "ApiKey", "DecodeTable", "EncodeTable"]
