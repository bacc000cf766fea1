"""The rows of the section "Why": the largest shares, the rest in one row, and how to run an example again."""

from __future__ import annotations

from experiments.studies.estimation.why import Attribution, attributions, documents
from experiments.studies.report.why import MOST, OTHERS, blocks
from tests.synthetic_studies import study_of

STUDY = study_of(sweep={"generation": ["kip-497", "kip-966"]})


def _row(cell: int, metric: str, reason: str, events: int, minutes: float, trial: int = 0) -> dict[str, object]:
    own = {"cell": cell, "metric": metric, "reason": reason, "causes": "broker (unclean)"}
    return own | {"events": events, "weight": float(events), "minutes": minutes, "trial": trial}


def test_shares_are_of_losses_by_weight_and_of_time_by_minutes() -> None:
    """3 of 4 losses; 30 of 40 minutes, though it has one of 4 episodes."""
    rows = [
        _row(1, "loss_rate", "truncated", 1, 0.0),
        _row(1, "loss_rate", "all-copies-lost", 3, 0.0, trial=5),
        _row(1, "unwritable_fraction", "too-few-alive", 1, 30.0),
        _row(1, "unwritable_fraction", "catching-up", 3, 10.0),
    ]
    found = attributions(rows, lambda cell, trial: 10 * cell + trial)
    assert [(each.reason, each.share) for each in found[1]] == [
        ("all-copies-lost", 0.75),
        ("truncated", 0.25),
        ("too-few-alive", 0.75),
        ("catching-up", 0.25),
    ]
    assert (found[1][0].trial, found[1][0].seed) == (5, 15)
    assert found[0] == []
    assert str(documents(found[1])[0]["sentence"]).startswith("every replica that had the records")


def test_a_block_per_cell_and_metric_with_an_example_and_the_others_in_one_row() -> None:
    reasons = ("too-few-alive", "catching-up", "leader-silent", "member-silent", "slow", "takeover", "election")
    own = [
        Attribution("unwritable_fraction", reason, "", 2, 2.0, 1.0, share, 4, 9)
        for reason, share in zip(reasons, (0.4, 0.2, 0.15, 0.1, 0.08, 0.05, 0.02), strict=True)
    ]
    (block,) = blocks(STUDY, [[], own])
    assert block.setting.endswith("kip-966")
    assert len(block.rows) == MOST + 1
    assert block.rows[0].command == "isray study replay . --cell 1 --trial 4"
    assert (block.rows[-1].sentence, block.rows[-1].events) == (OTHERS, 4)
    assert sum(row.share for row in block.rows) == 1.0
