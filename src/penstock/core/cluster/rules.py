"""The rules that keep what was acknowledged, by name. A broker has all of them; only a test makes one without.

A simulation that finds nothing proves something only if it finds the fault when a rule is missing. So each rule that can be
forgotten has a switch here, read where the rule is, and a test that turns it off. No configuration reaches this.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds."""

    synced_before_counted: bool = True
    """1. An offset counts toward the high watermark only after it is synced on that node."""
    maximal_in_sync_set: bool = True
    """2. The high watermark is the least end over the agreed in-sync set and those about to join it."""
    frozen_below_min: bool = True
    """2. It stands still while fewer replicas are in sync than the topic demands."""
    counted_by_epoch: bool = True
    """2. Only fetches in this leader's epoch move it."""
    agreed_shrink: bool = True
    """3. Who leaves the in-sync set counts until the store has agreed."""
    compare_and_set: bool = True
    """3. The in-sync set is changed only as it was last seen."""
    named_by_node_epoch: bool = True
    """4. A node leads only if the record names this incarnation of it."""
    truncate_by_epoch: bool = True
    """5. A follower cuts its log where its leader's history parts from it, not at its own high watermark."""
    refuse_below_min: bool = True
    """6. Nothing is appended for acks=all while too few replicas are in sync."""
    elect_in_sync_only: bool = True
    """6. Only who is in sync, or was when the set became too small, may lead."""
    fenced_by_epoch: bool = True
    """7. A leader that was replaced is told from its successor by the epoch, whatever clocks and leases say."""
    replay_before_serving: bool = True
    """8. A coordinator serves once everything that it may have promised before is committed and replayed."""
    producers_from_log: bool = True
    """9. What is remembered of producers follows from the log, on followers too."""
    authenticated_replicas: bool = True
    """10. Only nodes of the cluster are counted as replicas."""


ALL: Final = Rules()
