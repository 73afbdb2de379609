"""kio as the oracle: random messages as kio's objects, their bytes by kio's writers, and the same as our classes."""

import dataclasses
import datetime as dt
import importlib
import io
import random
import types
import typing
import uuid

import msgspec
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from penstock.wire.kafka.apis import API, Api

TIME_TYPES = {"timedelta_i32", "timedelta_i64", "datetime_i64"}
KIO_VERSION_MIN = {"produce": 3, "describe_configs": 1}
"""Versions that kio has dropped and we still speak; kafka-python is their oracle."""

INT_RANGES = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
LETTERS = "abc-._éß日😀"


def cases() -> list[tuple[Api, int, str]]:
    """Every API, version and direction that kio knows too."""
    return [
        (api, version, kind)
        for api in API.values()
        for version in range(max(api.min_version, KIO_VERSION_MIN.get(module_name(api), 0)), api.max_version + 1)
        for kind in ("request", "response")
    ]


def case_id(value: object) -> str:
    return value.name if isinstance(value, Api) else str(value)


def module_name(api: Api) -> str:
    return api.key.name.lower()


def kio_class(api: Api, version: int, kind: str) -> type:
    module = importlib.import_module(f"kio.schema.{module_name(api)}.v{version}.{kind}")
    return next(
        cls for cls in vars(module).values() if isinstance(cls, type)
        and getattr(getattr(cls, "__type__", None), "name", None) == kind
    )  # fmt: skip


def our_class(api: Api, kind: str) -> type[msgspec.Struct]:
    module = importlib.import_module(f"penstock.wire.kafka.{module_name(api)}_generated")
    return getattr(module, f"{api.name}{kind.capitalize()}")


def kio_encode(message: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def kio_decode(cls: type, data: bytes) -> object:
    message, _size = entity_reader(cls)(data, 0)
    return message


def random_message(cls: type, rng: random.Random) -> object:
    """A random instance of one of kio's classes; every field has a fair chance to be null, empty, long or extreme."""
    return cls(**{field.name: _random_field(field, rng) for field in dataclasses.fields(cls)})


def _random_field(field: dataclasses.Field, rng: random.Random) -> object:
    if "tag" in field.metadata and field.default is not dataclasses.MISSING and rng.random() < 0.5:
        return field.default
    annotation, nullable = _without_none(field.type)
    if nullable and rng.random() < 0.3:
        return None
    if typing.get_origin(annotation) is tuple:
        inner = typing.get_args(annotation)[0]
        is_struct = dataclasses.is_dataclass(inner)
        count = rng.choice((0, 1, 1, 2, 3)) if is_struct else rng.choice((0, 1, 2, 16, 17, 130))
        return tuple(_random_value(inner, field, rng) for _ in range(count))
    return _random_value(annotation, field, rng)


def _random_value(annotation: type, field: dataclasses.Field, rng: random.Random) -> object:
    if dataclasses.is_dataclass(annotation):
        return random_message(annotation, rng)
    kafka_type = field.metadata["kafka_type"]
    if kafka_type in INT_RANGES:
        bits = INT_RANGES[kafka_type]
        return rng.choice((0, 1, -1, 2**bits - 1, -(2**bits), rng.randrange(-(2**bits), 2**bits)))
    match kafka_type:
        case "uint16":
            return rng.choice((0, 65535, rng.randrange(65536)))
        case "float64":
            return rng.choice((0.0, -1.5, 1e300, rng.random()))
        case "bool":
            return rng.random() < 0.5
        case "string":
            return "".join(rng.choices(LETTERS, k=rng.choice((0, 1, 5, 9, 40, 127, 128, 300))))
        case "bytes" | "records":
            return rng.randbytes(rng.choice((0, 1, 20, 126, 127, 128, 5000)))
        case "uuid":
            return uuid.UUID(bytes=rng.randbytes(16), version=4)
        case "error_code":
            return rng.choice(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return dt.timedelta(milliseconds=rng.choice((0, 1, rng.randrange(-(2**31), 2**31))))
        case "datetime_i64":
            return dt.datetime.fromtimestamp(rng.randrange(0, 2**32), tz=dt.UTC)
    raise AssertionError(kafka_type)


def _without_none(annotation: typing.Any) -> tuple[typing.Any, bool]:
    if isinstance(annotation, types.UnionType):
        return next(arg for arg in typing.get_args(annotation) if arg is not type(None)), True
    return annotation, False


def random_ours(api: Api, version: int, kind: str, seed: object) -> msgspec.Struct:
    """A random message as an instance of our class."""
    kio_version = max(version, KIO_VERSION_MIN.get(module_name(api), 0))
    message = random_message(kio_class(api, kio_version, kind), random.Random(f"{api.name} {version} {kind} {seed}"))
    return to_ours(message, our_class(api, kind))


def to_ours(message: object, cls: type[msgspec.Struct]) -> msgspec.Struct:
    """The same message as an instance of our class; fields that this version does not have keep their defaults."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(message):
        name = field.name + ("_ms" if field.metadata.get("kafka_type") in TIME_TYPES else "")
        value = getattr(message, field.name)
        is_tagged_struct = "tag" in field.metadata and dataclasses.is_dataclass(value)
        if is_tagged_struct and value == field.default:
            values[name] = None
        else:
            values[name] = _to_our_value(value, field, hints[name])
    return cls(**values)


def _to_our_value(value: object, field: dataclasses.Field, hint: typing.Any) -> object:
    hint, _nullable = _without_none(hint)
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type == "uuid" and value is None:
        return bytes(16)
    if kafka_type == "datetime_i64" and value is None:
        return -1
    if isinstance(value, tuple):
        (inner,) = typing.get_args(hint)
        return [_to_our_value(element, field, inner) for element in value]
    if dataclasses.is_dataclass(value):
        return to_ours(value, hint)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, ErrorCode):
        return value.value
    if isinstance(value, dt.timedelta):
        return value // dt.timedelta(milliseconds=1)
    if isinstance(value, dt.datetime):
        return int(value.timestamp()) * 1000
    return value
