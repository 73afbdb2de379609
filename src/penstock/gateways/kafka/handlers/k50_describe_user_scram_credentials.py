"""DescribeUserScramCredentials (API key 50): for which SCRAM mechanisms users have passwords, and with how many iterations."""

from collections import Counter
from typing import Final

from penstock.core.security.scram import ScramHash
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.errors import DUPLICATE_RESOURCE
from penstock.gateways.kafka.handlers import handles
from penstock.operations.users import DescribeScram
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_user_scram_credentials_generated import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResponseCredentialInfo,
    DescribeUserScramCredentialsResponseResult,
)

MECHANISMS: Final = {1: ScramHash.SHA_256, 2: ScramHash.SHA_512}
"""By their numbers in the protocol."""
_NUMBERS: Final = {kind.value: number for number, kind in MECHANISMS.items()}


@handles(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, versions=(0, 0))
def handle(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """A request without users is for all that have credentials."""
    try:
        found = {each.user: each.iterations for each in context.answer(DescribeScram())}
    except PenstockError as error:
        return DescribeUserScramCredentialsResponse(error_code=context.code(error), error_message=error.text)
    wanted = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(
        error_message=None,
        results=[_result(name, wanted[name], found.get(name), context) for name in (wanted or sorted(found))],
    )


def _result(
    name: str, times: int, iterations: dict[str, int] | None, context: RequestContext
) -> DescribeUserScramCredentialsResponseResult:
    if times > 1:
        return DescribeUserScramCredentialsResponseResult(name, DUPLICATE_RESOURCE, "The user is listed twice")
    if iterations is None:
        return DescribeUserScramCredentialsResponseResult(
            name, context.code(Reason.UNKNOWN_USER), "There is no user of this name with SCRAM credentials"
        )
    infos = [
        DescribeUserScramCredentialsResponseCredentialInfo(_NUMBERS[mechanism], count)
        for mechanism, count in sorted(iterations.items())
    ]
    return DescribeUserScramCredentialsResponseResult(name, 0, None, infos)
