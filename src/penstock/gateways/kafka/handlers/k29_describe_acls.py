"""DescribeAcls (API key 29): refused with ``SECURITY_DISABLED``, as a Kafka broker without an authorizer does."""

from typing import Final

from penstock.core.access import Action
from penstock.errors import PenstockError, Reason
from penstock.gateways.kafka.context import RequestContext
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.describe_acls_generated import DescribeAclsRequest, DescribeAclsResponse

KEY: Final = ApiKey.DESCRIBE_ACLS
_TEXT: Final = (
    "This broker has no ACLs: every client that can reach a listener has full access. "
    "Restrict access with the listener addresses and the network"
)


def handle(_request: DescribeAclsRequest, context: RequestContext) -> DescribeAclsResponse:
    """There is nothing to list, and an empty list would look as if there could be something."""
    try:
        context.require_cluster(Action.DESCRIBE)
    except PenstockError as error:
        return DescribeAclsResponse(error_code=context.code(error), error_message=error.text)
    return DescribeAclsResponse(error_code=context.code(Reason.SECURITY_DISABLED), error_message=_TEXT)
