"""The OpenAPI document (3.1) of everything that this gateway serves.

It is made from the routes, which are documented next to their handlers (``routing.CallDoc``). The schemas are those of the msgspec
models that decode requests and encode responses, so the document cannot differ from the behaviour.
"""

from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
from msgspec import Struct
from starlette.routing import Route

from penstock import __version__
from penstock.gateways.http.server.errors import is_v1
from penstock.gateways.http.server.routing import ApiRoute, CallDoc, Content, Parameter

Schema = dict[str, Any]

_DESCRIPTION: Final = "Topics, messages, consumer groups and work queues. Topics, groups and offsets are shared with the Kafka protocol. Every response has an X-Request-Id: the one from the request, or a generated one."
_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_SECURITY_SCHEMES: Final[Schema] = {
    "basic": {
        "type": "http",
        "scheme": "basic",
        "description": "A user and a password, or the id and text of an API key",
    },
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key or a token (JWT)"},
}


class Error(Struct, frozen=True):
    """A refusal; the text says what to do."""

    error: str


class CodedError(Struct, frozen=True):
    """A refusal: a code for programs and a text that says what to do."""

    error: str
    message: str


def document(routes: Iterable[Route], *, secured: bool = False) -> Schema:
    """The whole document. ``secured``: clients must authenticate."""
    described = [known for known in routes if isinstance(known, ApiRoute)]
    models = _Models()
    for known in described:
        models.collect(known.doc)
    schemas = models.resolve()
    paths: dict[str, Schema] = {}
    for known in described:
        item = paths.setdefault(known.path_format, {})
        item[known.method.lower()] = _operation(known, models)
    tags = list(dict.fromkeys(known.tag for known in described))
    components: Schema = {"schemas": schemas}
    security: Schema = {}
    if secured:
        components["securitySchemes"] = _SECURITY_SCHEMES
        security["security"] = [{name: []} for name in _SECURITY_SCHEMES]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "description": _DESCRIPTION},
        "tags": [{"name": tag} for tag in tags],
        "paths": paths,
        "components": components,
        **security,
    }


class _Models:
    """The models of all calls, and the schema of each."""

    def __init__(self) -> None:
        self._models: list[Any] = [Error, CodedError]
        self._schemas: list[Schema] = []

    def collect(self, doc: CallDoc) -> None:
        """Add the models of a call."""
        for content in (doc.body, *doc.answers.values()):
            for part in _parts(content):
                self._models += _parts(part.model) if isinstance(part, Content) else (part,)
        self._models += (parameter.model for parameter in doc.parameters)

    def resolve(self) -> dict[str, Schema]:
        """The named schemas."""
        schemas, components = msgspec.json.schema_components(self._models, ref_template=_REF)
        self._schemas = list(schemas)
        return components

    def schema(self, model: Any) -> Schema:
        """The schema of a model that was collected."""
        at = next(at for at, known in enumerate(self._models) if known is model or known == model)
        return self._schemas[at]


def _parts(content: Any) -> Sequence[Any]:
    if content is None:
        return ()
    return content if isinstance(content, list) else (content,)


def _operation(known: ApiRoute, models: _Models) -> Schema:
    doc = known.doc
    made: Schema = {
        "tags": [known.tag],
        "summary": doc.summary,
        "operationId": _operation_id(known),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
                for name in known.param_convertors
            ),
            *(_parameter(parameter, models) for parameter in doc.parameters),
        ],
        "responses": _responses(known, models),
    }
    if doc.description:
        made["description"] = doc.description
    if doc.body is not None:
        made["requestBody"] = {"required": doc.body_required, "content": _content(doc.body, models)}
    return made


def _operation_id(known: ApiRoute) -> str:
    words = [word for word in known.path_format.replace("{", "").replace("}", "").split("/") if word]
    return "_".join([known.method.lower(), *words]).replace("-", "_").replace(".", "_")


def _parameter(parameter: Parameter, models: _Models) -> Schema:
    made: Schema = {
        "name": parameter.name,
        "in": parameter.where,
        "required": parameter.required,
        "schema": models.schema(parameter.model),
    }
    if parameter.description:
        made["description"] = parameter.description
    return made


def _content(content: Any, models: _Models) -> Schema:
    """By media type; several JSON models are alternatives. A stream is described by one of its pieces."""
    made: Schema = {}
    json_schemas: list[Schema] = []
    for part in _parts(content):
        if isinstance(part, Content):
            pieces = [models.schema(model) for model in _parts(part.model)]
            made[part.media_type] = {"schema": {"type": "string"}, "x-item-schema": _any_of(pieces)}
        else:
            json_schemas.append(models.schema(part))
    if json_schemas:
        made[_JSON] = {"schema": _any_of(json_schemas)}
    return made


def _any_of(schemas: list[Schema]) -> Schema:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _responses(known: ApiRoute, models: _Models) -> Schema:
    doc = known.doc
    error_schema = models.schema(CodedError if is_v1(known.path_format) else Error)
    made: Schema = {}
    for status, content in doc.answers.items():
        made[str(status)] = {"description": HTTPStatus(status).phrase}
        if content is not None:
            made[str(status)]["content"] = _content(content, models)
    for status in doc.errors:
        made[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {_JSON: {"schema": error_schema}},
        }
    made["default"] = {
        "description": "An error that any call can return: a body that is too large, an internal error, a broker that is busy or stopping",
        "content": {_JSON: {"schema": error_schema}},
    }
    for key, answer in made.items():
        answer["headers"] = _headers({} if key == "default" else doc.headers.get(int(key), {}))
    return made


def _headers(more: Mapping[str, str]) -> Schema:
    headers = {"X-Request-Id": "Identifies the request in the broker's log", **more}
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
