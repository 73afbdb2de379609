"""What an operator may choose about exactly-once sinks."""

from dataclasses import dataclass

from penstock.limits import SINKS_MAX


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """The ``[sinks]`` section of the configuration."""

    staging_idle_ms: int = 7 * 24 * 60 * 60 * 1000
    """A staging topic goes when nobody staged or committed for so long; the last batch id of its sink stays."""
    remember_ms: int = 30 * 24 * 60 * 60 * 1000
    """A sink is forgotten with its last batch id when nobody used it for so long; whoever opens it may ask for less."""
    sinks_max: int = SINKS_MAX
