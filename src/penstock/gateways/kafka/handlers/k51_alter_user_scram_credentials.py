"""AlterUserScramCredentials (API key 51): set and delete the SCRAM credentials of users, each user by itself.

The client hashes the password, so this broker never sees it.
"""

from typing import Final

from penstock.core.security.scram import ScramHash, is_acceptable
from penstock.core.security.users import check_user_name
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM
from penstock.gateways.kafka.handlers import handles
from penstock.gateways.kafka.handlers.k50_describe_user_scram_credentials import MECHANISMS
from penstock.limits import ALTERED_CREDENTIALS_MAX, SCRAM_ITERATIONS, SCRAM_ITERATIONS_MAX, SCRAM_SALT_BYTES_MAX
from penstock.operations.users import AlterScram, ScramCredential
from penstock.wire.kafka.alter_user_scram_credentials_generated import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsRequestDeletion,
    AlterUserScramCredentialsRequestUpsertion,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResponseResult,
)
from penstock.wire.kafka.apis import ApiKey

_Change = AlterUserScramCredentialsRequestDeletion | AlterUserScramCredentialsRequestUpsertion
_Result = AlterUserScramCredentialsResponseResult
_RIGHT: Final = AlterScram("", {})


@handles(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, versions=(0, 0))
async def handle(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    """All changes of a user are made, or none."""
    changes: dict[str, list[_Change]] = {}
    asked: list[_Change] = [*request.deletions, *request.upsertions]
    for change in asked:
        changes.setdefault(change.name, []).append(change)
    try:
        context.check(_RIGHT)
        if len(asked) > ALTERED_CREDENTIALS_MAX:
            raise PenstockError(
                Reason.INVALID_REQUEST, f"One request changes at most {ALTERED_CREDENTIALS_MAX} credentials"
            )
    except PenstockError as error:
        code = context.code(error)
        return AlterUserScramCredentialsResponse(results=[_Result(name, code, error.text) for name in changes])
    return AlterUserScramCredentialsResponse(
        results=[await _alter(name, of_user, context) for name, of_user in changes.items()]
    )


async def _alter(name: str, asked: list[_Change], context: RequestContext) -> _Result:
    refused = _refusal(name, asked)
    if refused is not None:
        return _Result(name, *refused)
    credentials = {MECHANISMS[change.mechanism].value: _credential(change) for change in asked}
    try:
        await context.do(AlterScram(name, credentials))
    except PenstockError as error:
        return _Result(name, context.code(error), error.text)
    return _Result(name, 0, None)


def _refusal(name: str, asked: list[_Change]) -> tuple[int, str] | None:
    """Kafka's code and a text, if a change of a user is not acceptable."""
    try:
        if check_user_name(name) != name:
            return UNACCEPTABLE_CREDENTIAL, "The name of the user must be prepared as RFC 4013 says"
    except PenstockError as error:
        return UNACCEPTABLE_CREDENTIAL, error.text
    if any(change.mechanism not in MECHANISMS for change in asked):
        return UNSUPPORTED_SASL_MECHANISM, "The mechanisms are SCRAM-SHA-256 (1) and SCRAM-SHA-512 (2)"
    if len({change.mechanism for change in asked}) < len(asked):
        return DUPLICATE_RESOURCE, "A credential can be changed only once in a request"
    for change in asked:
        if isinstance(change, AlterUserScramCredentialsRequestUpsertion):
            wrong = _wrong_credential(change, MECHANISMS[change.mechanism])
            if wrong:
                return UNACCEPTABLE_CREDENTIAL, wrong
    return None


def _wrong_credential(change: AlterUserScramCredentialsRequestUpsertion, kind: ScramHash) -> str:
    if not is_acceptable(change.iterations):
        return f"The number of iterations is {SCRAM_ITERATIONS} to {SCRAM_ITERATIONS_MAX}, not {change.iterations}"
    if not 0 < len(change.salt) <= SCRAM_SALT_BYTES_MAX:
        return f"A salt has 1 to {SCRAM_SALT_BYTES_MAX} bytes, not {len(change.salt)}"
    if len(change.salted_password) != kind.size:
        return f"A salted password of {kind.value} has {kind.size} bytes, not {len(change.salted_password)}"
    return ""


def _credential(change: _Change) -> ScramCredential | None:
    if isinstance(change, AlterUserScramCredentialsRequestDeletion):
        return None
    return ScramCredential(change.salt, change.iterations, change.salted_password)
