"""`isray bench controller`: the measured operations, and the shape of the report; no test of a time."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from experiments.bench import BENCHES
from experiments.bench.controller import SILENT, cluster_records, decide, expire_session, node_of, replay, run, state_of
from experiments.bench.report import growth, measure_ms, median_ms
from experiments.cli import bench as command
from experiments.cli.main import application
from experiments.support.errors import InputError
from protocol.contract import Send
from protocol.events.base import Trace
from protocol.messages.quorum import QuorumFetchResponse
from protocol.messages.records import BrokerRegistrationChangeRecord, PartitionChangeRecord

PARTITIONS = 30


def test_the_silent_broker_leads_a_third_and_is_in_every_isr() -> None:
    partitions = [state for _, state in state_of(cluster_records(PARTITIONS)).image.partitions()]
    assert len(partitions) == PARTITIONS
    assert sum(state.leader == SILENT for state in partitions) == PARTITIONS // 3
    assert all(sorted(state.isr) == sorted(state.replicas) == [0, 1, 2] for state in partitions)


def test_deciding_changes_nothing_and_replay_fences() -> None:
    state = state_of(cluster_records(PARTITIONS))
    before = dict(state.image.partitions())
    records = decide(state)
    assert [type(record) for record in records] == [PartitionChangeRecord] * PARTITIONS + [
        BrokerRegistrationChangeRecord
    ]
    assert dict(state.image.partitions()) == before
    replay(state, records)
    after = dict(state.image.partitions())
    assert state.image.brokers[SILENT].fenced
    assert not state.partitions_with(SILENT)
    assert not state.has_leaderships(SILENT)
    assert all(sorted(now.isr) == [1, 2] and now.leader in (1, 2) for now in after.values())
    moved = [key for key, now in after.items() if now.leader_epoch > before[key].leader_epoch]
    assert moved == [key for key, then in before.items() if then.leader == SILENT]


def test_the_node_writes_the_same_records_and_completes_every_delayed_fetch() -> None:
    cluster = cluster_records(PARTITIONS)
    node = node_of(cluster)
    effects = expire_session(node)
    records = decide(state_of(cluster))
    assert list(node.records[-len(records) :]) == records
    assert sum(isinstance(effect, Trace) and effect.kind == "partition" for effect in effects) == PARTITIONS
    answers = [e for e in effects if isinstance(e, Send) and isinstance(e.message, QuorumFetchResponse)]
    assert [answer.to for answer in answers] == [1, 2]


@pytest.mark.slow
def test_the_report_has_a_row_per_size_and_the_same_figures_in_the_document() -> None:
    report = run((60, PARTITIONS, PARTITIONS), repeats=1)
    sizes = report.document["sizes"]
    assert isinstance(sizes, list)
    assert [(size["partitions"], size["records"]) for size in sizes] == [(30, 31), (60, 61)]
    assert all(size[name] > 0 for size in sizes for name in size)
    assert [(row[0], row[1]) for row in report.rows] == [("30", "31"), ("60", "61")]
    assert all(len(row) == len(report.columns) for row in report.rows)
    exponents = report.document["growth_exponent"]
    assert isinstance(exponents, dict)
    assert sorted(exponents) == ["decide", "node", "replay"]
    assert all(isinstance(exponent, float) for exponent in exponents.values())


@pytest.mark.parametrize(
    ("sizes", "times", "exponent"),
    [
        ((10, 100, 1_000), (3, 30, 300), 1.0),
        ((10, 100), (2, 200), 2.0),
        ((10, 1_000), (7, 7), 0.0),
        ((10,), (1,), None),
    ],
)
def test_growth_is_the_exponent(sizes: tuple[int, ...], times: tuple[float, ...], exponent: float | None) -> None:
    assert growth(sizes, times) == (None if exponent is None else pytest.approx(exponent, abs=1e-3))


def test_a_median_is_not_moved_by_one_slow_run() -> None:
    assert median_ms([2.0, 900.0, 1.0]) == 2.0
    elapsed_ms, result = measure_ms(lambda: "done")
    assert (elapsed_ms >= 0, result) == (True, "done")


@pytest.mark.slow
def test_json_is_one_document() -> None:
    done = CliRunner().invoke(
        application(), ["bench", "controller", "--partitions", "20, 10", "--repeats", "1", "--json"]
    )
    document = json.loads(done.stdout)
    assert sorted(document) == ["benches", "cpus", "python"]
    assert [size["partitions"] for size in document["benches"]["controller"]["sizes"]] == [10, 20]
    assert document["benches"]["controller"]["kafka"]["times_kafka"] is None, "10,000 partitions were not measured"


@pytest.mark.slow
def test_the_table_has_a_row_per_size() -> None:
    done = CliRunner().invoke(application(), ["bench", "controller", "--partitions", "10", "--repeats", "1"])
    assert done.exit_code == 0
    assert "records/s" in done.stdout
    assert "growth exponent" not in done.stdout, "one size has no growth"


@pytest.mark.slow
def test_without_a_name_all_benches_run(monkeypatch: pytest.MonkeyPatch) -> None:
    report = run((10,), repeats=1)
    monkeypatch.setattr("experiments.bench.BENCHES", dict.fromkeys(("one", "two"), lambda: report))
    for arguments in (["bench", "--json"], ["bench"]):
        done = CliRunner().invoke(application(), arguments)
        assert done.exit_code == 0
        assert done.stdout.index("one") < done.stdout.index("two")


def test_every_bench_is_a_command() -> None:
    assert [info.name for info in command.app.registered_commands] == list(BENCHES)


@pytest.mark.parametrize("text", ["", "0", "-1", "ten", "10,,20", "1.5"])
def test_sizes_are_whole_numbers_above_0(text: str) -> None:
    done = CliRunner().invoke(application(), ["bench", "controller", f"--partitions={text}"])
    assert isinstance(done.exception, InputError)
    assert done.stdout == ""
