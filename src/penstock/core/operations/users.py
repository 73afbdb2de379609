"""Users and API keys. Without authentication there are none: SECURITY_DISABLED. Only administrators create and change administrators."""

from typing import TYPE_CHECKING

from penstock.core.operations.handling import answers, works
from penstock.core.security.access import Caller
from penstock.core.security.authenticator import Authenticator
from penstock.core.security.scram import ScramHash, ScramKeys, keys_of
from penstock.core.security.users import check_user_name
from penstock.errors import PenstockError, Reason
from penstock.metadata.port import Delete
from penstock.operations import users
from penstock.operations.access import USER
from penstock.types import Gateway

if TYPE_CHECKING:
    from penstock.core.broker import Broker


def _authenticator(broker: "Broker") -> Authenticator:
    if not broker.authenticator.is_required:
        raise PenstockError(
            Reason.SECURITY_DISABLED,
            "There are no users while authentication is off: every client that reaches a listener may do everything. "
            'Set security.authentication = "required" to use them',
        )
    return broker.authenticator


@works(users.CreateUser)
async def create_user(broker: "Broker", asked: users.CreateUser, caller: Caller) -> None:
    """Returns when it can log in at this node."""
    authenticator = _authenticator(broker)
    _check_target(broker, check_user_name(asked.user), caller, will_be_admin=asked.admin)
    scram = {} if asked.password is None else await authenticator.hashed(asked.password)
    await authenticator.users.create(asked.user, scram, broker.clock.now_ms(), admin=asked.admin)


@works(users.SetPassword)
async def set_password(broker: "Broker", asked: users.SetPassword, caller: Caller) -> None:
    """Returns when the old one is of no use at this node."""
    authenticator = _authenticator(broker)
    authenticator.users.require(asked.user)
    _check_target(broker, asked.user, caller)
    await authenticator.users.set_password(asked.user, await authenticator.hashed(asked.password))


@works(users.DeleteUser)
async def delete_user(broker: "Broker", asked: users.DeleteUser, caller: Caller) -> None:
    """Returns when it cannot log in at this node."""
    authenticator = _authenticator(broker)
    authenticator.users.require(asked.user)
    _check_target(broker, asked.user, caller)
    keys = [Delete(key) for key in authenticator.keys.stored_keys(asked.user)]
    spare = not asked.force and not broker.access.super_users
    await authenticator.users.delete(asked.user, *keys, spare_last_admin=spare)


@answers(users.ListUsers)
def list_users(broker: "Broker", _: users.ListUsers, __: Caller) -> tuple[users.UserInfo, ...]:
    """From the metadata that every node has."""
    authenticator = _authenticator(broker)
    keys: dict[str, int] = {}
    for _key_id, key in authenticator.keys.of():
        keys[key.user] = keys.get(key.user, 0) + 1
    return tuple(
        users.UserInfo(name, record.admin, record.created_ms, tuple(sorted(record.scram)), keys.get(name, 0))
        for name, record in authenticator.users.items()
    )


@works(users.CreateKey)
async def create_key(broker: "Broker", asked: users.CreateKey, caller: Caller) -> users.NewKey:
    """Returns when it can be used at this node."""
    authenticator = _authenticator(broker)
    authenticator.users.require(asked.user)
    _check_target(broker, asked.user, caller)
    key_id, key = await authenticator.keys.create(asked.user, asked.name, broker.clock.now_ms(), asked.expires_ms)
    return users.NewKey(key_id, key)


@works(users.RevokeKey)
async def revoke_key(broker: "Broker", asked: users.RevokeKey, _: Caller) -> None:
    """Returns when it is of no use at this node."""
    await _authenticator(broker).keys.revoke(asked.key, asked.user)


@answers(users.ListKeys)
def list_keys(broker: "Broker", asked: users.ListKeys, _: Caller) -> tuple[users.KeyInfo, ...]:
    """By id."""
    return tuple(
        users.KeyInfo(key_id, key.user, key.name, key.created_ms, key.expires_ms)
        for key_id, key in _authenticator(broker).keys.of(asked.user or None)
    )


@answers(users.DescribeScram)
def describe_scram(broker: "Broker", _: users.DescribeScram, __: Caller) -> tuple[users.ScramInfo, ...]:
    """From the metadata that every node has."""
    return tuple(
        users.ScramInfo(name, {mechanism: keys.iterations for mechanism, keys in record.scram.items()})
        for name, record in _authenticator(broker).users.items()
        if record.scram
    )


@works(users.AlterScram)
async def alter_scram(broker: "Broker", asked: users.AlterScram, caller: Caller) -> None:
    """Nothing is hashed here, because the client has done it."""
    authenticator = _authenticator(broker)
    made = {
        mechanism: None if given is None else _keys(ScramHash(mechanism), given)
        for mechanism, given in asked.credentials.items()
    }
    before = authenticator.users.get(asked.user)
    if any(keys is None and (before is None or name not in before.scram) for name, keys in made.items()):
        raise PenstockError(Reason.UNKNOWN_USER, f"There is no such credential of the user {asked.user!r}")
    kept = {name: keys for name, keys in made.items() if keys is not None}
    if before is None:
        _check_target(broker, check_user_name(asked.user), caller)
        await authenticator.users.create(asked.user, kept, broker.clock.now_ms())
        return
    _check_target(broker, asked.user, caller)
    left = {**before.scram, **kept}.keys() - {name for name, keys in made.items() if keys is None}
    if not left and not before.admin and not authenticator.keys.stored_keys(asked.user):
        await authenticator.users.delete(asked.user, spare_last_admin=False)
        return
    await authenticator.users.change_scram(
        asked.user,
        lambda stored: {name: keys for name, keys in {**stored, **kept}.items() if made.get(name, keys) is not None},
    )


def _keys(kind: ScramHash, given: users.ScramCredential) -> ScramKeys:
    return keys_of(kind, given.salted_password, given.salt, given.iterations)


def _check_target(broker: "Broker", user: str, caller: Caller, *, will_be_admin: bool = False) -> None:
    """Who may create or change an administrator, or a super user of the settings, can become one."""
    principal = f"{USER}{user}"
    is_admin = will_be_admin or principal in broker.access.super_users or broker.authenticator.users.is_admin(user)
    if is_admin and (will_be_admin or caller.principal != principal):
        _require_admin(broker, caller)


def _require_admin(broker: "Broker", caller: Caller) -> None:
    access = broker.access
    if caller.gateway is Gateway.INTERNAL or access.allows_all:
        return
    if caller.principal not in access.super_users and not access.is_super(caller.principal):
        raise PenstockError(
            Reason.CLUSTER_AUTHORIZATION_FAILED, "Only an administrator may create or change an administrator"
        )
