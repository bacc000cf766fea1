"""Scenarios about what becomes of acknowledged records, with numbers by hand, for both engines."""

from __future__ import annotations

from typing import Any


def _scenario(name: str, cluster: dict[str, Any], topic: dict[str, Any], *steps: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cluster": cluster, "topics": [{"name": "t", **topic}], "steps": list(steps)}


def _on_t(kind: str, **fields: object) -> dict[str, Any]:
    return {kind: {"topic": "t", **fields}}


RF_3: dict[str, Any] = {"assignments": [[0, 1, 2]], "config": {"min.insync.replicas": 2}}
TRUNCATED = _scenario(
    "acks-1-truncated",
    {"brokers": 3},
    RF_3,
    _on_t("produce", records=2, acks="all"),
    {"cut": {"between": [0, 1]}},
    {"cut": {"between": [0, 2]}},
    _on_t("produce", records=5, acks=1),
    _on_t("expect", lost_acked=0, lost_by_acks={1: 0, "all": 0}, undecided=0, deleted_by_retention=0),
    {"crash": {"broker": 0}},
    {"heal": "all"},
    _on_t("expect", undecided=7),
    _on_t("await", leader=1, lost_acked=0, lost_by_acks={1: 5, "all": 0}, undecided=0),
    {"start": {"broker": 0}},
    _on_t("await", isr=[0, 1, 2], log_end_offset={0: 2}, visible=2, lost_acked=0, lost_by_acks={1: 5}),
)
"""The leader acknowledges five records alone, dies, and truncates them when it is back."""
TRUNCATED_WORDS = "5 (acks=1: 5, acks=all: 0)"

DISK_GONE = _scenario(
    "disk-gone",
    {"brokers": 1},
    {"assignments": [[0]]},
    _on_t("produce", records=5, acks="all"),
    {"crash": {"broker": 0, "lose": "all"}},
    _on_t("await", leader=-1, undecided=5),
)
"""The only replica has lost its disk, and nothing leads."""
DISK_GONE_WORDS = "unknown, undecided: 5 (t-0 has no leader)"

EARLY_RETENTION = _scenario(
    "clock-ahead",
    {"brokers": 3, "config": {"log.retention.check.interval.ms": 1_000}},
    {**RF_3, "config": {"min.insync.replicas": 2, "retention.ms": 60_000, "segment.bytes": 200}},
    _on_t("produce", records=50),
    {"fault": {"kind": "clock_skew", "node": 0, "skew_ms": 60_000, "duration": "60s"}},
    _on_t("await", leader=1, isr=[0, 1, 2]),
    _on_t("expect", lost_acked=0, deleted_by_retention=0, visible=50),
    _on_t("elect", type="preferred"),
    _on_t("await", leader=0, deleted_by_retention=48),
    _on_t("expect", lost_acked=0, lost_by_acks={1: 0, "all": 0}, undecided=0, visible=2),
)
"""A leader whose clock is a minute ahead finds all closed segments older than a minute: 48 of 50 records."""
EARLY_RETENTION_WORDS = "0, deleted by retention: 48"

SMALLER_SET = _scenario(
    "smaller-set",
    {"brokers": 3},
    {**RF_3, "config": {"min.insync.replicas": 1}},
    _on_t("produce", records=5),
    {"shutdown": {"broker": 2}},
    _on_t("await", isr=[0, 1]),
    _on_t("reassign", replicas=[1, 2]),
    {"wait": "5s"},
    _on_t("expect", replicas=[1, 2, 0], isr=[0, 1]),
    {"crash": {"broker": 1, "lose": "all"}},
    _on_t("await", leader=0, lost_acked=0, within="60s"),
    {"start": {"broker": 1}},
    {"start": {"broker": 2}},
    _on_t("await", replicas=[1, 2], isr=[1, 2], lost_acked=0, visible=5, within="60s"),
)
"""A reassignment to fewer replicas keeps the leader, which has the only other copy, until all of them are in sync."""


def downgraded(one: str, generation: str = "kip-966-elr") -> dict[str, Any]:
    """Broker 2 led last and has lost its disk; broker 1, in the ELR beside it, has all five records. It is ended with
    the step `one`. An unsafe downgrade returns both to the ISR.
    """
    features = {"unclean.recovery.enabled": {"level": 0, "downgrade": "safe"}} if generation == "kip-966" else {}
    features |= {"metadata.version": {"level": 1, "downgrade": "unsafe"}}
    return _scenario(
        "downgraded",
        {"brokers": 3, "generation": generation},
        RF_3,
        _on_t("produce", records=5),
        {"shutdown": {"broker": 0}},
        _on_t("await", isr=[1, 2]),
        {one: {"broker": 1}},
        _on_t("await", isr=[2], elr=[1], leader=2),
        {"crash": {"broker": 2, "lose": "all"}},
        _on_t("await", isr=[], elr=[1, 2], leader=-1),
        *({"update_feature": {"feature": name, **levels}} for name, levels in features.items()),
        _on_t("expect", isr=[1, 2], leader=-1, leader_recovery_state="recovered"),
        {"start": {"broker": 1}},
        _on_t("await", leader=1, isr=[1], lost_acked=0, visible=5),
        {"start": {"broker": 2}},
        _on_t("await", leader=1, isr=[1, 2], log_end_offset={1: 5, 2: 5}, lost_acked=0),
        {"crash": {"broker": 1}},
        {"start": {"broker": 0}},
        _on_t("await", leader=2, isr=[0, 2], lost_acked=0, visible=5, within="60s"),
    )
