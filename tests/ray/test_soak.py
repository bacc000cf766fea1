"""`isray soak` for a minute: every kind of fault under continuous load, and no acknowledged record is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from experiments.check.check_recording import ALL_SHOWN
from experiments.check.history import Invoked, Seen
from experiments.check.recording import HistoryReader
from experiments.hunt.soak.faults import FAULTS
from tests.ray.command_helpers import isray

LEAST_ACKNOWLEDGED = 5_000
WITHIN_S = 540
"""Ten faults and their healing take two to three minutes, longer on a slow machine."""


@pytest.mark.timeout(WITHIN_S + 30)
def test_soak_with_all_faults_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("soak", "--minutes", "1", "--rate", "150", "--seed", "1", "--out", str(out), "--json")
    code, text, errors = isray(*arguments, folder=tmp_path, within_s=WITHIN_S)
    assert text, errors
    document = json.loads(text)
    assert (document["findings"], code) == ([], 0)
    assert {kind: found["done"] > 0 for kind, found in document["faults"].items()} == dict.fromkeys(FAULTS, True)
    records = document["records"]
    assert records["acknowledged"] >= LEAST_ACKNOWLEDGED
    assert records["read"] >= 2 * records["acknowledged"]
    assert records["sent"] == records["acknowledged"] + records["failed"] + records["unknown"]
    assert {broker: sizes["max_bytes"] > 0 for broker, sizes in document["memory"].items()} == {
        str(broker): True for broker in range(3)
    }
    history = list(HistoryReader(out / "history.jsonl"))
    assert sum(sent.size for sent in history if isinstance(sent, Invoked)) == records["sent"]
    assert {seen.reader for seen in history if isinstance(seen, Seen)} == {0, 1}
    schedule = [json.loads(line) for line in (out / "schedule.jsonl").read_text().splitlines()]
    struck = {fault["kind"]: fault["what"] for fault in schedule}
    assert set(struck) == set(FAULTS)
    assert "without a word" not in struck["full-disk"]
    assert " 0 logs" not in struck["corrupt-tail"]
    assert len(list((out / "logs").iterdir())) == 4 * 3
    code, text, errors = isray("check", str(out), "--json", folder=tmp_path)
    assert code == 0, (text, errors)
    checked = json.loads(text)
    assert (checked["violations"], checked["unjudged"]) == ([], [])
    assert checked["nothing_may_be_lost"]
    assert checked["within_tolerance"].keys() == {f"soak-{index}" for index in range(4)}
    assert all(checked["looked_at"][name] for name in ALL_SHOWN), checked["looked_at"]


def test_kafkas_clients_lose_nothing_when_their_leader_is_killed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    faults = ("--minutes", "0", "--faults", "kill-leader", "--rate", "500")
    code, text, errors = isray("soak", "--kafka-clients", *faults, "--out", str(out), "--json", folder=tmp_path)
    assert text, errors
    document = json.loads(text)
    assert (document["findings"], code) == ([], 0)
    assert document["kafka_clients"]
    assert document["faults"]["kill-leader"]["done"] == 1
    records = document["records"]
    assert records["sent"] == records["acknowledged"] > 0, "records do not expire, so every one is acknowledged"
    assert records["read"] >= 2 * records["acknowledged"]
    reading = {seen.reader for seen in HistoryReader(out / "history.jsonl") if isinstance(seen, Seen)}
    assert reading == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--faults", "kill-leader,kill-time"], "--faults: found 'kill-time'; allowed: each at most once: kill-leader"),
        (["--faults", "cut,cut"], "--faults: found 'cut'"),
        (["--out", "."], "--out: found .; allowed: a folder that is empty"),
        (["--html", "something/day.html"], "--html: found something, and something cannot be written to"),
        (["--html", "."], "--html: found ., a folder; allowed: a file"),
    ],
)
def test_wrong_input_is_one_line(tmp_path: Path, arguments: Sequence[str], message: str) -> None:
    (tmp_path / "something").touch()
    code, text, errors = isray("soak", *arguments, folder=tmp_path)
    assert (code, text, errors.count("\n")) == (2, "", 1)
    assert message in errors
