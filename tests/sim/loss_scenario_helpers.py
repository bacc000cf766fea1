"""Scenarios about what becomes of acknowledged records, with numbers by hand, for both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class LossCase(NamedTuple):
    """A scenario, what is said of its losses, and the values of `lost_acked`, `lost_by_acks`, `undecided` and
    `deleted_by_retention`.
    """

    scenario: dict[str, Any]
    words: str
    figures: tuple[object, ...]


_DOCUMENTS = yaml.safe_load_all((Path(__file__).parent / "testdata" / "losses.yaml").read_text(encoding="utf-8"))
LOSSES = {item["case"]: LossCase(item["scenario"], item["words"], tuple(item["figures"])) for item in _DOCUMENTS}
TRUNCATED, DISK_GONE, SMALLER_SET = (LOSSES[name] for name in ("truncated", "disk gone", "smaller set"))


def on_t(kind: str, **fields: object) -> dict[str, Any]:
    return {kind: {"topic": "t", **fields}}


def downgraded(one: str, generation: str = "kip-966-elr") -> dict[str, Any]:
    """Broker 2 led last and has lost its disk; broker 1, in the ELR beside it, has all five records. It is ended with
    the step `one`. An unsafe downgrade returns both to the ISR.
    """
    features = {"unclean.recovery.enabled": {"level": 0, "downgrade": "safe"}} if generation == "kip-966" else {}
    features |= {"metadata.version": {"level": 1, "downgrade": "unsafe"}}
    steps: list[dict[str, Any]] = [
        on_t("produce", records=5),
        {"shutdown": {"broker": 0}},
        on_t("await", isr=[1, 2]),
        {one: {"broker": 1}},
        on_t("await", isr=[2], elr=[1], leader=2),
        {"crash": {"broker": 2, "lose": "all"}},
        on_t("await", isr=[], elr=[1, 2], leader=-1),
        *({"update_feature": {"feature": name, **levels}} for name, levels in features.items()),
        on_t("expect", isr=[1, 2], leader=-1, leader_recovery_state="recovered"),
        {"start": {"broker": 1}},
        on_t("await", leader=1, isr=[1], lost_acked=0, visible=5),
        {"start": {"broker": 2}},
        on_t("await", leader=1, isr=[1, 2], log_end_offset={1: 5, 2: 5}, lost_acked=0),
        {"crash": {"broker": 1}},
        {"start": {"broker": 0}},
        on_t("await", leader=2, isr=[0, 2], lost_acked=0, visible=5, within="60s"),
    ]
    topic = {"name": "t", "assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}
    cluster = {"brokers": 3, "generation": generation}
    return {"name": "downgraded", "cluster": cluster, "topics": [topic], "steps": steps}
