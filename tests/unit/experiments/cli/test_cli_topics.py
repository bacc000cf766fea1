"""`isray topics` against a simulated cluster: words, layout and exit codes."""

from __future__ import annotations

import pytest

from experiments.engines.admin_requests import reassign
from experiments.engines.port import Loss
from protocol.errors import ErrorCode
from protocol.features import Generation
from protocol.messages.topics import DescribeTopicRequest
from protocol.metrics import MANUAL_ELECTION_REQUIRED, UNCLEAN_RECOVERY, UNCLEAN_RECOVERY_FINISHED, UNDER_MIN_ISR
from tests.unit.experiments.cli.cli_helpers import CliBench, MakeBench


def lines(bench: CliBench, *more: str) -> list[str]:
    return bench.ok("topics", "--describe", *more).splitlines()


@pytest.mark.covers("J19")
def test_create_list_and_delete(bench: CliBench) -> None:
    assert bench.ok("topics", "--list") == "\n"
    assert bench.ok("topics", "--create", "--topic", "b", "--partitions", "2", "--replication-factor", "3") == (
        "Created topic b.\n"
    )
    bench.create("a")
    assert bench.ok("topics", "--list") == "a\nb\n"
    assert bench.json("topics", "--list", "--topic", "a|c") == ["a"]
    assert len(lines(bench, "--topic", "b")) == 3
    assert bench.ok("topics", "--delete", "--topic", "a") == ""
    assert bench.json("topics", "--list") == ["b"]


@pytest.mark.covers("J19")
def test_partitions_are_added_and_the_last_are_removed(bench: CliBench) -> None:
    bench.create()
    bench.ok("topics", "--alter", "--topic", "t", "--partitions", "3")
    assert len(lines(bench)) == 4
    bench.ok(
        "topics", "--alter", "--topic", "t", "--partitions", "4", "--replica-assignment", "0:1:2,0:1:2,0:1:2,3:1:2"
    )
    assert "Partition: 3\tLeader: 3\tReplicas: 3,1,2" in lines(bench)[4]
    bench.ok("topics", "--alter", "--topic", "t", "--remove-partitions", "3")
    assert [line.split("\t")[2] for line in lines(bench)[1:]] == ["Partition: 0"]
    assert "INVALID_PARTITIONS" in bench.fails("topics", "--alter", "--topic", "t", "--remove-partitions", "1")
    assert "INVALID_PARTITIONS" in bench.fails("topics", "--alter", "--topic", "t", "--partitions", "1")
    too_many = bench.fails("topics", "--alter", "--topic", "t", "--partitions", "10002")
    assert "POLICY_VIOLATION: the request concerns 10001 partitions; allowed: at most 10000" in too_many


@pytest.mark.covers("J12")
def test_describe_has_kafkas_layout_and_the_columns_of_kip_966(bench: CliBench) -> None:
    bench.create("t", "0:1:2,1:2:0", "--config", "min.insync.replicas=2")
    bench.kill(0, 1)
    bench.await_(lambda: bench.state().isr == (2,))
    topic, first, second = lines(bench, "--topic", "t")
    topic_id = bench.json("topics", "--describe")[0]["topic_id"]
    configs = "Configs: min.insync.replicas=2"
    assert topic == f"Topic: t\tTopicId: {topic_id}\tPartitionCount: 2\tReplicationFactor: 3\t{configs}"
    assert first == (
        "\tTopic: t\tPartition: 0\tLeader: 2\tReplicas: 0,1,2\tIsr: 2\tElr: 1\tLastKnownElr: \tLastKnownLeader: none"
    )
    assert second.startswith("\tTopic: t\tPartition: 1\tLeader: 2\tReplicas: 1,2,0\tIsr: 2\tElr: 1")


@pytest.mark.covers("J12")
def test_describe_prints_n_a_where_the_feature_level_has_no_elr(make_bench: MakeBench) -> None:
    bench = make_bench(Generation.KIP_497)
    bench.create()
    assert lines(bench)[1].endswith("\tElr: N/A\tLastKnownElr: N/A\tLastKnownLeader: N/A")


@pytest.mark.covers("M87")
def test_describe_at_every_step_of_the_last_replica_standing(bench: CliBench) -> None:
    """The steps of M1: what describe says at each, and the metrics I2 to I5 with it."""
    bench.create("t", "0:1:2", "--config", "min.insync.replicas=2")

    def described() -> tuple[dict[str, str], int]:
        fields = dict(part.split(": ", 1) for part in lines(bench, "--topic", "t")[1].strip().split("\t"))
        names = ("Leader", "Isr", "Elr", "LastKnownElr", "LastKnownLeader")
        metrics = bench.engine.metrics()
        assert {metrics[name] for name in (UNCLEAN_RECOVERY, MANUAL_ELECTION_REQUIRED, UNCLEAN_RECOVERY_FINISHED)} == {
            0
        }
        return {name: fields[name] for name in names}, metrics[UNDER_MIN_ISR]

    def shown(leader: str, isr: str, elr: str, known_elr: str, known_leader: str, under_min_isr: int) -> object:
        fields = {"Leader": leader, "Isr": isr, "Elr": elr, "LastKnownElr": known_elr, "LastKnownLeader": known_leader}
        return fields, under_min_isr

    assert described() == shown("0", "0,1,2", "", "", "none", 0)
    bench.connect(0, False)
    bench.await_(lambda: bench.state().isr == (1, 2))
    assert described() == shown("1", "1,2", "", "", "none", 0)
    bench.connect(1, False)
    bench.await_(lambda: bench.state().isr == (2,))
    assert described() == shown("2", "2", "1", "", "none", 1)
    bench.engine.crash(2, Loss("unflushed"))
    bench.await_(lambda: bench.state().leader == -1)
    assert described() == shown("none", "", "1,2", "", "2", 1)
    bench.connect(1, True)
    bench.await_(lambda: bench.state().leader == 1)
    assert described() == shown("1", "1", "2", "", "none", 1)
    bench.engine.heal_links()
    bench.await_(lambda: bench.state().isr == (1, 0))
    assert described() == shown("1", "1,0", "", "", "none", 0)
    bench.start(2)
    bench.await_(lambda: len(bench.state().isr) == 3)
    assert described() == shown("1", "1,0,2", "", "", "none", 0)


def test_reports_show_only_partitions_of_their_kind(bench: CliBench) -> None:
    bench.create("t", "0:1:2,1:2:3,3:2:1", "--config", "min.insync.replicas=2")
    bench.create("lonely", "0")
    assert lines(bench, "--under-replicated-partitions") == []
    bench.kill(0)

    def shown(report: str) -> list[tuple[str, str]]:
        found = [line.strip().split("\t") for line in lines(bench, report)]
        return [(fields[0].removeprefix("Topic: "), fields[1].removeprefix("Partition: ")) for fields in found]

    assert shown("--under-replicated-partitions") == [("lonely", "0"), ("t", "0")]
    assert shown("--unavailable-partitions") == [("lonely", "0")]
    assert shown("--under-min-isr-partitions") == [("lonely", "0")]
    assert shown("--at-min-isr-partitions") == [("t", "0")]
    bench.kill(1)
    assert shown("--under-min-isr-partitions") == [("lonely", "0"), ("t", "0")]


@pytest.mark.covers("E8", "N31")
@pytest.mark.parametrize(
    ("generation", "under", "at"),
    [(Generation.KIP_966_ELR, [1], [0]), (Generation.KIP_966, [1], [0]), (Generation.KIP_497, [0, 1], [])],
)
def test_reports_count_with_the_min_isr_of_each_partition(
    make_bench: MakeBench, generation: Generation, under: list[int], at: list[int]
) -> None:
    """Partition 0 has one replica and partition 1 three, of which one is in sync; min.insync.replicas is 2."""
    bench = make_bench(generation)
    bench.create("t", "0:1:2,0:1:2", "--config", "min.insync.replicas=2")
    assert bench.port.call(reassign("t", 0, (2,))).error is ErrorCode.NONE
    bench.await_(lambda: bench.state(partition=0).replicas == (2,))
    bench.kill(0, 1)
    bench.await_(lambda: bench.state(partition=1).isr == (2,))

    def shown(report: str) -> list[int]:
        [topic] = bench.json("topics", "--describe", report)
        return [item["partition_index"] for item in topic["partitions"]]

    assert shown("--under-min-isr-partitions") == under
    assert shown("--at-min-isr-partitions") == at
    assert bench.engine.metrics()[UNDER_MIN_ISR] == len(under)


def test_describe_selects_by_id_and_by_overrides(bench: CliBench) -> None:
    bench.create("plain", "0:1,1:2,2:0")
    bench.create("own", "0:1,1:2", "--config", "flush.messages=5")
    described = {topic["name"]: topic for topic in bench.json("topics", "--describe")}
    by_id = ("topics", "--describe", "--topic-id", described["own"]["topic_id"])
    assert bench.ok(*by_id) == bench.ok("topics", "--describe", "--topic", "own")
    unknown = ("topics", "--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAA")
    assert "UNKNOWN_TOPIC_ID: TopicId 'AAAAAAAAAAAAAAAAAAAAAA' does not exist as expected" in bench.fails(*unknown)
    assert bench.ok(*unknown, "--if-exists") == ""
    [line] = bench.ok("topics", "--describe", "--topics-with-overrides").splitlines()
    assert line == bench.ok(*by_id).splitlines()[0]
    assert [topic["name"] for topic in bench.json("topics", "--describe", "--topics-with-overrides")] == ["own"]
    bench.port.requests.clear()
    whole = bench.ok("topics", "--describe", "--partition-size-limit-per-response", "2")
    assert whole == bench.ok("topics", "--describe")
    described_by = [request for request in bench.port.requests if isinstance(request, DescribeTopicRequest)]
    assert [request.response_partition_limit for request in described_by].count(2) == 3


def test_if_exists_and_if_not_exists(bench: CliBench) -> None:
    bench.create()
    again = ("topics", "--create", "--topic", "t", "--partitions", "1")
    assert "Error while executing topic command: TOPIC_ALREADY_EXISTS" in bench.fails(*again)
    assert bench.ok(*again, "--if-not-exists") == ""
    assert bench.json(*again, "--if-not-exists")["created"] is False
    for action in (["--describe"], ["--delete"], ["--alter", "--partitions", "2"]):
        assert "Topic 'no' does not exist as expected" in bench.fails("topics", *action, "--topic", "no")
        assert bench.ok("topics", *action, "--topic", "no", "--if-exists") == ""
    document = bench.json("topics", "--describe", "--topic", "no", code=1)
    assert document["error"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_a_refused_request_is_one_line_and_exit_code_1(bench: CliBench) -> None:
    refused = bench.fails("topics", "--create", "--topic", "t", "--partitions", "1", "--replication-factor", "9")
    assert refused.startswith("Error while executing topic command: INVALID_REPLICATION_FACTOR")
    assert len(refused.splitlines()) == 1
    assert "INVALID_CONFIG" in bench.fails("topics", "--create", "--topic", "t", "--config", "min.insync.replicas=0")
    assert "INVALID_TOPIC_EXCEPTION" in bench.fails("topics", "--create", "--topic", "a b")
    assert bench.json("topics", "--list") == []
