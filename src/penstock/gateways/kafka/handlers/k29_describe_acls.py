"""DescribeAcls (API key 29): the access rules that a filter selects. Version 2 is flexible, 3 adds the resource type User.

SECURITY_DISABLED while authentication is off.
"""

from itertools import groupby

from penstock.errors import PenstockError
from penstock.gateways.kafka.acls import ACTIONS, PATTERNS, PERMISSIONS, RESOURCES, filter_in, number_of
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.access import ListRules, Pattern, Rule
from penstock.operations.operation import Resource
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_acls_generated import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeAclsResponseAcl,
    DescribeAclsResponseResource,
)


@handles(ApiKey.DESCRIBE_ACLS, versions=(1, 3))
def handle(request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """By resource."""
    try:
        context.check(ListRules())
        rules = context.answer(ListRules(filter_in(request)))
    except PenstockError as error:
        return DescribeAclsResponse(error_code=context.code(error), error_message=error.text)
    return DescribeAclsResponse(
        error_message=None,
        resources=[
            DescribeAclsResponseResource(
                number_of(RESOURCES, resource), name, number_of(PATTERNS, pattern), [_acl(rule) for rule in found]
            )
            for (resource, name, pattern), found in groupby(rules, _resource_of)
        ],
    )


def _resource_of(rule: Rule) -> tuple[Resource, str, Pattern]:
    return rule.resource, rule.name, rule.pattern


def _acl(rule: Rule) -> DescribeAclsResponseAcl:
    return DescribeAclsResponseAcl(
        rule.principal, rule.host, number_of(ACTIONS, rule.action), number_of(PERMISSIONS, rule.permission)
    )
