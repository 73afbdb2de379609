"""The errors of the Spark source. Every text says what to write or to do instead.

Spark turns an exception of a Python worker into text that begins with the name of its class, so only code in the same process can catch
these.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("penstock.spark")


class OptionError(ValueError):
    """An option or a schema is not valid."""


class DataLossError(RuntimeError):
    """Records that the query should read no longer exist, or never did."""


class SourceError(RuntimeError):
    """The source cannot continue for a reason outside the query, such as a broker or a topic that is missing."""


DATA_LOSS_ADVICE: Final = (
    "Some records may be lost: retention deleted them, or the topic was deleted or created again before they were read. "
    'Set the option failOnDataLoss to "false" to continue without them.'
)


def report_data_loss(text: str, *, fail: bool) -> None:
    """Raise :class:`DataLossError`, or only log it (``failOnDataLoss`` false)."""
    if fail:
        raise DataLossError(f"{text} {DATA_LOSS_ADVICE}")
    LOG.warning("%s The query continues, because failOnDataLoss is false.", text)
