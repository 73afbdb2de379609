"""What a user of the Spark source can be told: every text says what to write, or to do, instead.

Spark turns an exception of a Python worker into text, so these classes are for code that runs in one process with them, and
for a reader of that text: its first line names the class.
"""

from __future__ import annotations

import logging
from typing import Final

LOG: Final = logging.getLogger("penstock.spark")


class OptionError(ValueError):
    """An option, or a schema, that cannot be used as it stands."""


class DataLossError(RuntimeError):
    """Records that the query was to read are not there any more, or never were."""


class SourceError(RuntimeError):
    """The source cannot go on for a reason that is not the query's: a broker that is away, a topic that is not there."""


DATA_LOSS_ADVICE: Final = (
    "Some records may be lost: retention deleted them, or the topic was deleted or created again before they were read. "
    'Set the option failOnDataLoss to "false" to continue without them.'
)


def report_data_loss(text: str, *, fail: bool) -> None:
    """Raise :class:`DataLossError`, or say it in the log and let the caller go on (``failOnDataLoss`` false)."""
    if fail:
        raise DataLossError(f"{text} {DATA_LOSS_ADVICE}")
    LOG.warning("%s The query continues, because failOnDataLoss is false.", text)
