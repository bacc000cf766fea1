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
from protocol.kafka_release import kafka_release
from protocol.messages.quorum import AddVoterRequest
from protocol.quorum.kafka_rules import CAUGHT_UP_ONCE, QUORUM_RULES
from protocol.quorum.leader_state import LeaderState
from protocol.quorum.membership import Change, blocking_reason
from protocol.quorum.voters import ReplicaKey, VoterHistory, VoterSet

DATA = Path(__file__).parents[3] / "data"
FILES = {
    "4.4.0": (
        55,
        {
            "blocked-change-refused": 16,
            "candidacy-resumed": 31,
            "election-timeout-kept": 6,
            "epoch-before-voter-key": 104,
            "last-voter-not-found": 6,
            "leader-ignored-in-pre-vote": 9,
            "leader-without-endpoint": 2,
            "observer-keeps-leader": 28,
            "pre-vote-given-up": 119,
            "resigned-enters-next-epoch": 27,
            "truncated-voters-missed": 1,
            "uncommitted-removal-obeyed": 2,
        },
    ),
}
"""Rows of each file that are answered as recorded, and how many others show each of `QUORUM_DEPARTURES`."""
LINES = gzip.decompress((DATA / "quorum_traces_kafka_4.4.0.jsonl.gz").read_bytes()).splitlines()


@pytest.mark.parametrize("release", FILES)
def test_recorded_events_depart_by_declared_rules_only(release: str) -> None:
    result = replay_file(DATA / f"quorum_traces_kafka_{release}.jsonl.gz")
    passed, shown = FILES[release]
    assert (result.kind, result.release, result.is_stated) == ("quorum trace", kafka_release(release), True)
    assert (result.passed, result.failed) == (passed, 0)
    assert Counter(it.name for row in result.departed for it in row.departures) == shown


def test_every_rule_is_declared_and_shown_by_a_recorded_row() -> None:
    assert {it.name for it in QUORUM_DEPARTURES} == set(QUORUM_RULES)
    assert {name for _, shown in FILES.values() for name in shown} == set(QUORUM_RULES) - {CAUGHT_UP_ONCE}


def test_a_replica_that_lags_again_may_be_added_by_kafkas_rule_alone() -> None:
    leader, added = ReplicaKey(1, "a"), ReplicaKey(2, "b")
    state = LeaderState(epoch=1, start_offset=0, since_ms=0, local=leader)
    state.record_fetch(added, end_offset=3, leader_end=3, now_ms=5)
    request = AddVoterRequest(correlation_id=1, voter_id=added.id, voter_uuid=added.uuid)
    change, history = Change(9, request, 1_000), VoterHistory(VoterSet.of([leader]))
    assert blocking_reason(change, history, state, 4, 4) == "2:b has 3 of 4 records"
    assert blocking_reason(change, history, state, 4, 4, frozenset({CAUGHT_UP_ONCE})) == ""


@pytest.mark.parametrize("seed", range(12))
def test_a_row_with_another_answer_or_state_anywhere_fails(seed: int) -> None:
    random = Random(seed)
    row = json.loads(random.choice(LINES[1:]))
    step = random.choice(row["steps"])
    _spoil(random, step)
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
        (b'"batches":[', b'"batches":[[],', "row 1: quorum.batches"),
    ],
)
def test_a_row_of_another_shape_is_wrong_input(tmp_path: Path, old: bytes, new: bytes, found: str) -> None:
    row = next(line for line in LINES[1:] if old in line)
    file = tmp_path / "quorum.jsonl"
    file.write_bytes(row.replace(old, new, 1))
    with pytest.raises(InputError, match=found):
        replay_file(file)
