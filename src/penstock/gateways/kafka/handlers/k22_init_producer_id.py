"""InitProducerId (API key 22): an id for an idempotent producer. Transactions are not supported.

Version 3 lets a producer keep its id with a higher epoch after an error.
"""

from penstock.errors import PenstockError
from penstock.gateways.kafka.context import RequestContext
from penstock.gateways.kafka.handlers import handles
from penstock.operations.records import TakeProducerId
from penstock.operations.transactions import WriteInTransactions
from penstock.types import NO_PRODUCER_ID
from penstock.wire.kafka.apis import ApiKey
from penstock.wire.kafka.init_producer_id_generated import InitProducerIdRequest, InitProducerIdResponse


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
async def handle(request: InitProducerIdRequest, context: RequestContext) -> InitProducerIdResponse:
    """Every request gets a new id."""
    try:
        if request.transactional_id is not None:
            context.answer(WriteInTransactions(request.transactional_id))
        producer_id = await context.do(TakeProducerId())
    except PenstockError as error:
        return InitProducerIdResponse(error_code=context.code(error), producer_id=NO_PRODUCER_ID, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
