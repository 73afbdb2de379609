"""DeleteAcls (API key 31): delete the access rules that filters select, and return them. Version 2 is flexible, 3 adds the resource type User.

SECURITY_DISABLED while authentication is off.
"""

from penstock.errors import PenstockError
from penstock.gateways.kafka.acls import ACTIONS, PATTERNS, PERMISSIONS, RESOURCES, filter_in, number_of
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.access import DeleteRules, Rule, RuleFilter
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.delete_acls_generated import (
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResponseFilterResult,
    DeleteAclsResponseMatchingAcl,
)


@handles(ApiKey.DELETE_ACLS, versions=(1, 3))
async def handle(request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    """Each filter by itself: an invalid one does not affect the others."""
    results = [DeleteAclsResponseFilterResult(error_message=None) for _ in request.filters]
    try:
        context.check(DeleteRules(()))
        filters: dict[int, RuleFilter] = {}
        for at, asked in enumerate(request.filters):
            try:
                filters[at] = filter_in(asked)
            except PenstockError as error:
                _refuse(results[at], error, context)
        found = await context.do(DeleteRules(tuple(filters.values())))
        for at, rules in zip(filters, found, strict=True):
            results[at].matching_acls = [_acl(rule) for rule in rules]
    except PenstockError as error:
        for result in results:
            if not result.error_code:
                _refuse(result, error, context)
    return DeleteAclsResponse(filter_results=results)


def _refuse(result: DeleteAclsResponseFilterResult, error: PenstockError, context: RequestContext) -> None:
    result.error_code, result.error_message = context.code(error), error.text


def _acl(rule: Rule) -> DeleteAclsResponseMatchingAcl:
    return DeleteAclsResponseMatchingAcl(
        0,
        None,
        number_of(RESOURCES, rule.resource),
        rule.name,
        number_of(PATTERNS, rule.pattern),
        rule.principal,
        rule.host,
        number_of(ACTIONS, rule.action),
        number_of(PERMISSIONS, rule.permission),
    )
