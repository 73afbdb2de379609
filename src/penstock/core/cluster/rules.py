"""The rules that protect acknowledged records, by name. A broker follows all of them; only tests turn one off.

A simulation without failures proves something only if it fails when a rule is missing. So each rule has a switch here, which the code
of the rule reads, and a test that turns it off. There is no setting for this.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that are followed."""

    synced_before_counted: bool = True
    """1. A record counts for the high watermark only after it is synced on that node."""
    maximal_in_sync_set: bool = True
    """2. The high watermark is the lowest end of the agreed in-sync replicas and those about to join them."""
    frozen_below_min: bool = True
    """2. It does not advance while fewer replicas are in sync than the topic requires."""
    counted_by_epoch: bool = True
    """2. Only fetches in this leader's epoch advance it."""
    agreed_shrink: bool = True
    """3. A replica that leaves the in-sync set counts until the store has agreed."""
    compare_and_set: bool = True
    """3. The in-sync set is changed by compare-and-set."""
    named_by_node_epoch: bool = True
    """4. A node leads only if the record has its current node epoch."""
    truncate_by_epoch: bool = True
    """5. A follower truncates its log where it diverges from its leader's, not at its own high watermark."""
    refuse_below_min: bool = True
    """6. Nothing is appended with acks=all while too few replicas are in sync."""
    elect_in_sync_only: bool = True
    """6. Only replicas that are in sync, or were when the set became too small, may lead."""
    fenced_by_epoch: bool = True
    """7. Epochs distinguish a replaced leader from its successor, whatever clocks and leases say."""
    replay_before_serving: bool = True
    """8. A coordinator serves once all records that earlier ones may have acknowledged are committed and replayed."""
    producers_from_log: bool = True
    """9. The state of producers follows from the log, on followers too."""
    authenticated_replicas: bool = True
    """10. Only nodes of the cluster are counted as replicas."""


ALL: Final = Rules()
