"""Users and API keys under ``/v1``: create, list and delete them, and set passwords."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock.gateways.http.server.answers import NO_CONTENT, Answer, json_answer
from penstock.gateways.http.server.routing import ApiCalls, CallDoc, HttpCall, body_of
from penstock.gateways.http.v1.models import Milliseconds, NoFields, StrictRequest
from penstock.gateways.http.v1.requests import parameters_of, read, refuse
from penstock.operations.users import (
    EVERYONE,
    CreateKey,
    CreateUser,
    DeleteUser,
    KeyInfo,
    ListKeys,
    ListUsers,
    NewKey,
    RevokeKey,
    SetPassword,
    UserInfo,
)

CALLS: Final = ApiCalls("v1: users")


class CreateUserRequest(StrictRequest, frozen=True):
    """POST /v1/users."""

    user: Annotated[str, Meta(description="the name")] = ""
    password: (
        Annotated[
            str, Meta(description="without one, the user can only have API keys", extra_json_schema={"writeOnly": True})
        ]
        | None
    ) = None
    admin: Annotated[bool, Meta(description="whether the user may do everything; default false")] = False


class SetPasswordRequest(StrictRequest, frozen=True):
    """PUT /v1/users/{user}/password."""

    password: Annotated[str, Meta(description="the new password", extra_json_schema={"writeOnly": True})] = ""


class DeleteUserRequest(StrictRequest, frozen=True):
    """DELETE /v1/users/{user}."""

    force: Annotated[bool, Meta(description="delete even the last administrator; default false")] = False


class CreateKeyRequest(StrictRequest, frozen=True):
    """POST /v1/keys."""

    user: Annotated[str, Meta(description="the owner, whose rights the key has")] = ""
    name: Annotated[str, Meta(description="what the key is for")] = ""
    expires_ms: (
        Annotated[Milliseconds, Meta(description="unix time in milliseconds when the key expires; default never")]
        | None
    ) = None


class ListKeysRequest(StrictRequest, frozen=True):
    """GET /v1/keys."""

    user: Annotated[str, Meta(description="the owner; default all users")] = EVERYONE


class UserList(msgspec.Struct, frozen=True):
    """GET /v1/users."""

    users: tuple[UserInfo, ...]


class KeyList(msgspec.Struct, frozen=True):
    """GET /v1/keys."""

    keys: tuple[KeyInfo, ...]


@CALLS.get("/v1/users", CallDoc("List all users", {200: UserList}, errors=(400,)))
async def _list_users(call: HttpCall) -> Answer:
    read(NoFields, call.query, b"")
    return json_answer(UserList(await call.do(ListUsers())))


@CALLS.post("/v1/users", CallDoc("Create a user", {204: None}, errors=(400, 409, 429), body=CreateUserRequest))
async def _create_user(call: HttpCall) -> Answer:
    request = body_of(CreateUserRequest, call)
    await call.do(CreateUser(request.user, request.password, request.admin))
    return NO_CONTENT


@CALLS.put(
    "/v1/users/{user}/password",
    CallDoc(
        "Set the password of a user",
        {204: None},
        errors=(400, 404, 429),
        description="The connections that the old password opened are closed; API keys stay.",
        body=SetPasswordRequest,
    ),
)
async def _set_password(call: HttpCall) -> Answer:
    request = body_of(SetPasswordRequest, call)
    await call.do(SetPassword(call.params["user"], request.password))
    return NO_CONTENT


@CALLS.delete(
    "/v1/users/{user}",
    CallDoc(
        "Delete a user with its API keys, and close its connections",
        {204: None},
        errors=(400, 404, 429),
        parameters=parameters_of(DeleteUserRequest),
    ),
)
async def _delete_user(call: HttpCall) -> Answer:
    request = read(DeleteUserRequest, call.query, call.body)
    await call.do(DeleteUser(call.params["user"], request.force))
    return NO_CONTENT


@CALLS.get(
    "/v1/keys", CallDoc("List API keys", {200: KeyList}, errors=(400,), parameters=parameters_of(ListKeysRequest))
)
async def _list_keys(call: HttpCall) -> Answer:
    request = read(ListKeysRequest, call.query, b"")
    return json_answer(KeyList(await call.do(ListKeys(request.user))))


@CALLS.post(
    "/v1/keys",
    CallDoc(
        "Create an API key",
        {200: NewKey},
        errors=(400, 404, 429),
        description="The answer is the only place where the key is shown.",
        body=CreateKeyRequest,
    ),
)
async def _create_key(call: HttpCall) -> Answer:
    request = body_of(CreateKeyRequest, call)
    if not request.user:
        raise refuse("user is required")
    return json_answer(await call.do(CreateKey(request.user, request.name, request.expires_ms)))


@CALLS.delete("/v1/keys/{key}", CallDoc("Revoke an API key", {204: None}, errors=(400, 404)))
async def _revoke_key(call: HttpCall) -> Answer:
    read(NoFields, call.query, call.body)
    key_id = call.params["key"]
    # Users may revoke their own keys, so the right depends on the owner.
    found = call.gateway.broker.authenticator.keys.get(key_id)
    await call.do(RevokeKey(EVERYONE if found is None else found.user, key_id))
    return NO_CONTENT
