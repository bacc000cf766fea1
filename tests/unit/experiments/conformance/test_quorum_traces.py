"""Recorded events of Kafka's KafkaRaftClient: answered as recorded, or explained by declared departures."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from experiments.conformance.decisions import replay_file
from experiments.conformance.departures import QUORUM_DEPARTURES, quorum_explanation
from experiments.conformance.quorum import differences
from experiments.conformance.quorum_rows import QuorumRow
from experiments.support.errors import InputError
from protocol.kafka_release import KafkaRelease
from protocol.quorum.kafka_rules import QUORUM_RULES

DATA = Path(__file__).parents[3] / "data"
FILES = {
    "traces_kafka_4.4.0_seed_2": (
        56,
        {
            "blocked-change-refused": 25,
            "candidacy-resumed": 26,
            "election-timeout-kept": 2,
            "ended-leader-protected": 1,
            "epoch-before-voter-key": 103,
            "last-voter-not-found": 5,
            "leader-ignored-in-pre-vote": 7,
            "leader-without-endpoint": 1,
            "observer-keeps-leader": 25,
            "pre-vote-given-up": 126,
            "resigned-enters-next-epoch": 22,
            "truncated-voters-missed": 1,
            "uncommitted-removal-obeyed": 2,
        },
    ),
    "traces_kafka_4.4.0_seed_3": (
        49,
        {
            "blocked-change-refused": 22,
            "candidacy-resumed": 23,
            "caught-up-once": 1,
            "epoch-before-voter-key": 97,
            "last-voter-not-found": 3,
            "leader-ignored-in-pre-vote": 11,
            "leader-without-endpoint": 5,
            "observer-keeps-leader": 22,
            "pre-vote-given-up": 142,
            "resigned-enters-next-epoch": 30,
            "uncommitted-removal-obeyed": 6,
            "vote-repeated": 1,
        },
    ),
    "joins_kafka_4.4.0_seed_1": (
        14,
        {
            "epoch-before-voter-key": 8,
            "leader-ignored-in-pre-vote": 1,
            "leader-without-endpoint": 1,
            "observer-keeps-leader": 81,
            "pre-vote-given-up": 4,
            "uncommitted-removal-obeyed": 1,
        },
    ),
}
"""Rows of each file that are answered as recorded, and how many others show each of `QUORUM_DEPARTURES`."""
LINES = gzip.decompress((DATA / "quorum_traces_kafka_4.4.0_seed_2.jsonl.gz").read_bytes()).splitlines()


@pytest.mark.parametrize("name", FILES)
def test_recorded_events_depart_by_declared_rules_only(name: str) -> None:
    result = replay_file(DATA / f"quorum_{name}.jsonl.gz")
    passed, shown = FILES[name]
    assert (result.kind, result.release, result.is_stated) == ("quorum trace", KafkaRelease.V4_4, True)
    assert (result.passed, result.failed) == (passed, 0)
    assert Counter(it.name for row in result.departed for it in row.departures) == shown


def test_every_rule_is_declared_and_shown_by_a_recorded_row() -> None:
    assert {it.name for it in QUORUM_DEPARTURES} == set(QUORUM_RULES)
    assert {name for _, shown in FILES.values() for name in shown} == set(QUORUM_RULES)


@pytest.mark.parametrize("seed", range(12))
def test_a_row_with_another_answer_or_state_anywhere_fails(seed: int) -> None:
    random = Random(seed)
    row = json.loads(random.choice(LINES[1:]))
    step = random.choice(row["steps"])
    _spoil(random, step)
    assert not quorum_explanation(partial(differences, QuorumRow.model_validate_json(json.dumps(row))))


@pytest.mark.parametrize(("old", "new"), [("add_voter/1", "remove_voter/1"), (" to 2", " to 3"), ("/1/1 ", "/1/2 ")])
def test_a_node_that_joins_by_another_request_fails(old: str, new: str) -> None:
    lines = gzip.decompress((DATA / "quorum_joins_kafka_4.4.0_seed_1.jsonl.gz").read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines[1:]]
    row, joins = next((row, it["joins"]) for row in rows for it in row["steps"] if old in "".join(it["joins"]))
    joins[:] = [request.replace(old, new) for request in joins]
    assert not quorum_explanation(partial(differences, QuorumRow.model_validate_json(json.dumps(row))))


def _spoil(random: Random, step: dict[str, Any]) -> None:
    if step["answer"] is not None and random.random() < 0.5:
        step["answer"]["error"] = "NONE" if step["answer"]["error"] != "NONE" else "FENCED_LEADER_EPOCH"
    else:
        field = random.choice(("role", "epoch", "leader", "end_offset", "last_epoch", "voters"))
        step["state"][field] = {"role": "voted", "voters": [[9, 1]]}.get(field, 99)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b'"static":', b'"fixed":', "row 1: quorum"),
        (b'"type":"vote"', b'"type":"veto"', "row 1: steps"),
        (b'"batches":[[', b'"batches":[[],[', "row 1: quorum.batches"),
    ],
)
def test_a_row_of_another_shape_is_wrong_input(tmp_path: Path, old: bytes, new: bytes, found: str) -> None:
    row = next(line for line in LINES[1:] if old in line)
    file = tmp_path / "quorum.jsonl"
    file.write_bytes(row.replace(old, new, 1))
    with pytest.raises(InputError, match=found):
        replay_file(file)
