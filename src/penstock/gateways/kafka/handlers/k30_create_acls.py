"""CreateAcls (API key 30): create access rules. One that exists is created again without an error. Version 2 is flexible, 3 adds the resource type User.

SECURITY_DISABLED while authentication is off.
"""

from penstock.core.security.acls import checked_rule
from penstock.errors import PenstockError
from penstock.gateways.kafka.acls import rule_in
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.access import CreateRules, Rule
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.create_acls_generated import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreateAclsResponseResult,
)


@handles(ApiKey.CREATE_ACLS, versions=(1, 3))
async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Each rule by itself: an invalid one does not affect the others."""
    invalid: dict[int, PenstockError] = {}
    refusal: PenstockError | None = None
    try:
        context.check(CreateRules(()))
        rules: list[Rule] = []
        for at, creation in enumerate(request.creations):
            try:
                rules.append(checked_rule(rule_in(creation)))
            except PenstockError as error:
                invalid[at] = error
        await context.do(CreateRules(tuple(rules)))
    except PenstockError as error:
        refusal = error
    return CreateAclsResponse(
        results=[_result(invalid.get(at, refusal), context) for at in range(len(request.creations))]
    )


def _result(error: PenstockError | None, context: RequestContext) -> CreateAclsResponseResult:
    return CreateAclsResponseResult(context.code(error), None if error is None else error.text)
