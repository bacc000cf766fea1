"""What the best setting is, in words, for each metric that a study may be about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Objective:
    """Words for one metric. `best`: what the setting with the lowest value does; `noun`: what is counted; `more` and
    `less`: what a setting with a higher or lower value does."""

    best: str
    noun: str
    more: str
    less: str


OBJECTIVES: Mapping[str, Objective] = {
    "loss_rate": Objective("loses acknowledged records least often", "loss events", "loses more", "loses less"),
    "lost_records_per_year": Objective(
        "loses the fewest acknowledged records", "lost records", "loses more records", "loses fewer records"
    ),
    "offline_fraction": Objective(
        "is without a leader for the shortest time", "the time without a leader", "offline longer", "offline shorter"
    ),
    "reject_fraction": Objective(
        "rejects acks=all writes for the shortest time",
        "the time of rejected writes",
        "rejects writes longer",
        "rejects writes shorter",
    ),
    "stall_fraction": Objective(
        "lets writes wait for a silent broker for the shortest time",
        "the time in which writes wait for a silent broker",
        "stalled longer",
        "stalled shorter",
    ),
    "unwritable_fraction": Objective(
        "is not writable for the shortest time",
        "the time in which writes fail",
        "not writable longer",
        "not writable shorter",
    ),
    "unwritable_offline_fraction": Objective(
        "is not writable for want of a leader for the shortest time",
        "the time in which writes fail for want of a leader",
        "not writable longer",
        "not writable shorter",
    ),
    "unwritable_leader_fraction": Objective(
        "is not writable because of a crashed leader for the shortest time",
        "the time in which writes fail because of a crashed leader",
        "not writable longer",
        "not writable shorter",
    ),
    "unwritable_isr_fraction": Objective(
        "is not writable because of a slow leader or a silent member of the ISR for the shortest time",
        "the time in which writes fail because of a slow leader or a silent member of the ISR",
        "not writable longer",
        "not writable shorter",
    ),
    "unwritable_refused_fraction": Objective(
        "is not writable for too small an ISR for the shortest time",
        "the time in which writes fail for too small an ISR",
        "not writable longer",
        "not writable shorter",
    ),
    "unclean_recoveries_per_year": Objective(
        "has the fewest unclean recoveries", "unclean recoveries", "more unclean recoveries", "fewer unclean recoveries"
    ),
    "high_watermark_regressions_per_year": Objective(
        "has the fewest regressions of the high watermark",
        "regressions of the high watermark",
        "more regressions",
        "fewer regressions",
    ),
    "acknowledged_loss_rate": Objective(
        "loses acknowledged records least often, whatever acks is",
        "loss events of acknowledged records",
        "loses more",
        "loses less",
    ),
    "acks_1_loss_rate": Objective(
        "loses records acknowledged with acks=1 least often", "loss events with acks=1", "loses more", "loses less"
    ),
}
