"""What an operator may choose about exactly-once sinks."""

from dataclasses import dataclass

from penstock.limits import SINKS_MAX


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The ``[sinks]`` section of the configuration."""

    staging_idle_ms: int = 7 * 24 * 60 * 60 * 1000
    """A staging topic goes when nobody staged or committed for so long; the last batch id of its sink stays."""
    sinks_max: int = SINKS_MAX
