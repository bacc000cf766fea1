"""`isray leader-election` and `isray reassign-partitions` against a simulated cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.engines.port import Loss
from protocol.features import Generation
from protocol.ids import RECOVERY_MANAGER
from protocol.messages.partitions import ElectionType, ElectLeadersRequest
from tests.unit.experiments.cli.cli_helpers import CliBench, Commands, MakeBench
from tests.yaml_rows import rows

ELECT = ("leader-election", "--election-type")


def written(folder: Path, content: object) -> str:
    path = folder / "input.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


NESTED = pytest.param("[" * 100_000, id="nested")
"""Nested more deeply than the parser accepts."""


def partition(topic: str = "t", index: int = 0, **more: Any) -> dict[str, object]:
    return {"topic": topic, "partition": index} | more


@pytest.mark.covers("J1", "J2", "J10")
def test_preferred_elects_the_first_replica_only_where_another_leads(bench: CliBench) -> None:
    bench.create("t", "0:1:2,1:2:0")
    bench.kill(0)
    bench.start(0)
    bench.await_(lambda: set(bench.state().isr) == {0, 1, 2})
    one = (*ELECT, "PREFERRED", "--topic", "t", "--partition")
    assert bench.ok(*one, "0") == "Successfully completed leader election (PREFERRED) for partitions t-0\n"
    assert bench.state().leader == 0
    assert bench.ok(*one, "0") == "Valid replica already elected for partitions t-0\n"
    failed = bench.fails(*one, "7")
    assert "Error completing leader election (PREFERRED) for partition: t-7: UNKNOWN_TOPIC_OR_PARTITION" in failed
    assert "1 replica(s) could not be elected" in failed


def test_a_number_in_quotes_is_shown_with_its_quotes(command: Commands, tmp_path: Path) -> None:
    wrong = {"partitions": [partition() | {"partition": "0"}]}
    refused = command.refused(*ELECT, "preferred", "--path-to-json-file", written(tmp_path, wrong))
    assert refused.endswith(': partitions[0].partition: found "0"; allowed: a whole number\n')


@pytest.mark.covers("J3", "J6")
def test_unclean_elects_where_no_replica_leads(make_bench: MakeBench) -> None:
    bench = make_bench(Generation.KIP_497)
    bench.create("t", "0:1")
    bench.kill(0)
    bench.await_(lambda: bench.state().isr == (1,))
    bench.engine.crash(1, Loss("none"))
    bench.await_(lambda: bench.state().leader == -1)
    bench.start(0)
    found = bench.json(*ELECT, "Unclean", "--topic", "t", "--partition", "0")
    assert found == {"election_type": "unclean", "succeeded": [partition()], "not_needed": [], "failed": []}
    assert (bench.state().leader, bench.state().isr) == (0, (0,))


@pytest.mark.covers("J5", "J7")
def test_partitions_of_a_file_and_all_partitions(bench: CliBench, tmp_path: Path) -> None:
    bench.create("t", "0:1:2,1:2:0")
    bench.kill(0)
    bench.start(0)
    bench.await_(lambda: all(len(bench.state("t", index).isr) == 3 for index in (0, 1)))
    file = written(tmp_path, {"partitions": [partition(index=1, desiredLeader=0), partition("no")]})
    found = bench.json(*ELECT, "preferred", "--path-to-json-file", file, code=1)
    assert found["not_needed"] == [partition(index=1)]
    [failed] = found["failed"]
    assert (failed["topic"], failed["error"]) == ("no", "UNKNOWN_TOPIC_OR_PARTITION")
    found = bench.json(*ELECT, "preferred", "--all-topic-partitions")
    assert found["succeeded"] == [partition()]
    assert found["not_needed"] == []


@pytest.mark.covers("J4", "J5")
def test_a_file_may_begin_with_a_byte_order_mark(bench: CliBench, tmp_path: Path) -> None:
    bench.create("t", "0:1:2")
    file = tmp_path / "marked.json"
    file.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0}]}), encoding="utf-8-sig")
    found = bench.json(*ELECT, "preferred", "--path-to-json-file", str(file))
    assert found["not_needed"] == [{"topic": "t", "partition": 0}]


def lose_the_leader(bench: CliBench) -> None:
    """Crashes 0, 1 and then 2, the last in the ISR of t-0, and starts 0."""
    bench.kill(0, 1)
    bench.await_(lambda: bench.state().isr == (2,))
    bench.engine.crash(2, Loss("none"))
    bench.await_(lambda: bench.state().leader == -1)
    bench.start(0)


def test_designation_elects_the_leader_of_the_file_for_a_leaderless_partition(bench: CliBench, tmp_path: Path) -> None:
    bench.create("t", "0:1:2,1:2:3", "--config", "min.insync.replicas=2")
    lose_the_leader(bench)
    assert bench.state().leader == -1
    wanted = {"partitions": [partition(desiredLeader=0), partition(index=1, desiredLeader=2)]}
    command = (*ELECT, "designation", "--path-to-json-file", written(tmp_path, wanted))
    found = bench.json(*command)
    assert (found["succeeded"], found["not_needed"]) == ([partition()], [partition(index=1)])
    assert bench.state().leader == 0
    request = bench.port.requests[-1]
    assert isinstance(request, ElectLeadersRequest)
    assert request.election_type is ElectionType.DESIGNATION
    assert request.topic_partitions is not None
    assert request.topic_partitions[0].desired_leaders == (0, 2)


@pytest.mark.covers("F24", "G33", "J5", "J10")
def test_each_wrong_designation_has_its_error_and_the_others_are_done(bench: CliBench, tmp_path: Path) -> None:
    bench.create("t", ",".join(["0:1:2"] * 9))
    lose_the_leader(bench)
    leaders = {0: 0, 1: 3, 2: 1, 3: 99, 5: 0, 7: 0, 8: None, 42: 0}
    wanted = [partition(index=index, desiredLeader=leader) for index, leader in leaders.items()]
    wanted += [partition(index=4), partition(index=5, desiredLeader=0), partition("no", desiredLeader=0)]
    wanted += [partition(index=6), partition(index=6, desiredLeader=0)]
    file = written(tmp_path, {"partitions": wanted})
    command = (*ELECT, "designation", "--path-to-json-file", file)
    found = bench.json(*command, code=1)
    assert found["succeeded"] == [partition(index=0), partition(index=7)]
    assert {(item["topic"], item["partition"]): item["error"] for item in found["failed"]} == {
        ("t", 1): "INVALID_REQUEST",
        ("t", 2): "ELIGIBLE_LEADERS_NOT_AVAILABLE",
        ("t", 3): "INVALID_REQUEST",
        ("t", 4): "INVALID_REQUEST",
        ("t", 5): "INVALID_REQUEST",
        ("t", 6): "INVALID_REQUEST",
        ("t", 8): "INVALID_REQUEST",
        ("t", 42): "UNKNOWN_TOPIC_OR_PARTITION",
        ("no", 0): "UNKNOWN_TOPIC_OR_PARTITION",
    }
    assert all(item["message"] for item in found["failed"])
    assert [bench.state("t", index).leader for index in (0, 1, 5, 7)] == [0, -1, -1, 0]
    line = bench.fails(*command)
    assert "Error completing leader election (DESIGNATION) for partition: t-5: INVALID_REQUEST" in line
    assert "9 replica(s) could not be elected" in line


@pytest.fixture
def manual(make_bench: MakeBench) -> CliBench:
    """Topics whose leaders a user elects."""
    return make_bench(unclean_recovery_strategy="manual")


def lose_all(bench: CliBench, *topics: str) -> None:
    """Two partitions per topic on brokers 0 and 1, five records in each first one, ISR and ELR empty; 0 has lost
    its log, is back, and 1 is not.
    """
    for topic in topics:
        bench.create(topic, "0:1,0:1", "--config", "min.insync.replicas=2")
        for _ in range(5):
            assert bench.produce(topic=topic) == "NONE"
    bench.engine.crash(0, Loss("all"))
    bench.await_(lambda: bench.state(topics[-1], 1).elr == (0,))
    bench.engine.crash(1, Loss("none"))
    bench.await_(lambda: bench.state(topics[-1], 1).leader == -1)
    bench.start(1)
    bench.kill(1)
    bench.start(0)
    bench.await_(lambda: all(set(bench.state(topic).last_known_elr) == {0, 1} for topic in topics))


@pytest.mark.covers("J1", "J4", "J6", "J10", "F22")
def test_longest_log_elections_query_all_known_replicas_or_only_live_ones(manual: CliBench) -> None:
    lose_all(manual, "t")
    one = ("--topic", "t", "--partition", "0")
    line = manual.fails(*ELECT, "longest_log_balanced", *one)
    assert "(LONGEST_LOG_BALANCED) for partition: t-0: ELIGIBLE_LEADERS_NOT_AVAILABLE" in line
    manual.ok(*ELECT, "longest_log_proactive", "--topic", "t", "--partition", "1")
    assert (manual.state("t", 0).leader, manual.state("t", 1).leader) == (-1, 0)
    manual.start(1)
    out = manual.ok(*ELECT, "LONGEST_LOG_BALANCED", *one)
    assert out == "Successfully completed leader election (LONGEST_LOG_BALANCED) for partitions t-0\n"
    assert manual.state().leader == 1, "its log is the longer one"
    again = manual.ok(*ELECT, "longest_log_balanced", *one)
    assert again == "Valid replica already elected for partitions t-0\n"


@pytest.mark.slow
@pytest.mark.covers("J5", "J7", "J10", "G31", "J11")
def test_the_longest_log_for_many_and_for_all(manual: CliBench, tmp_path: Path) -> None:
    names = [f"t{number:02}" for number in range(23)]
    lose_all(manual, *names)
    manual.start(1)
    wanted = [partition(name) for name in names] + [partition("no"), partition("t00", 7), partition("t01")]
    file = written(tmp_path, {"partitions": wanted})
    found = manual.json(*ELECT, "longest_log_proactive", "--path-to-json-file", file, code=1)
    assert found["succeeded"] == [partition(name) for name in names if name != "t01"]
    errors = {(item["topic"], item["partition"]): item["error"] for item in found["failed"]}
    unknown = "UNKNOWN_TOPIC_OR_PARTITION"
    assert errors == {("no", 0): unknown, ("t00", 7): unknown, ("t01", 0): "INVALID_REQUEST"}
    asked = [request for request in manual.port.requests if isinstance(request, ElectLeadersRequest)]
    assert [len(request.topic_partitions or ()) for request in asked] == [20, 3]
    found = manual.json(*ELECT, "longest_log_balanced", "--all-topic-partitions")
    rest = [partition(name, index) for name in names for index in (0, 1) if index == 1 or name == "t01"]
    assert (found["succeeded"], found["not_needed"], found["failed"]) == (rest, [], [])
    assert {manual.state(name).leader for name in names} == {1}


@pytest.mark.covers("J4", "J10", "F19")
def test_a_longest_log_election_without_a_recovery_manager_times_out(manual: CliBench) -> None:
    lose_all(manual, "t")
    manual.engine.crash(RECOVERY_MANAGER, Loss("none"))
    line = manual.fails(*ELECT, "longest_log_proactive", "--topic", "t", "--partition", "0")
    assert "REQUEST_TIMED_OUT" in line
    assert manual.state().leader == -1
    manual.engine.start(RECOVERY_MANAGER)
    manual.ok(*ELECT, "longest_log_proactive", "--topic", "t", "--partition", "0")
    assert manual.state().leader == 0


@pytest.mark.covers("J4", "J10")
def test_a_longest_log_that_is_not_found_in_time_fails_and_no_other_with_it(manual: CliBench, tmp_path: Path) -> None:
    manual.create("u", "2")
    manual.engine.crash(2, Loss("none"))
    lose_all(manual, "t")
    manual.start(2)
    manual.engine.set_link(2, RECOVERY_MANAGER, False)
    file = written(tmp_path, {"partitions": [partition("u"), partition("t")]})
    found = manual.json(*ELECT, "longest_log_proactive", "--path-to-json-file", file, code=1)
    assert found["succeeded"] == [partition("t")]
    assert [(item["topic"], item["error"]) for item in found["failed"]] == [("u", "REQUEST_TIMED_OUT")]


@pytest.mark.covers("F25", "J4", "K1")
def test_without_unclean_recovery_there_is_no_longest_log(make_bench: MakeBench) -> None:
    bench = make_bench(Generation.KIP_966_ELR)
    bench.create("t", "0:1")
    bench.kill(0, 1)
    bench.await_(lambda: bench.state().leader == -1)
    line = bench.fails(*ELECT, "longest_log_balanced", "--topic", "t", "--partition", "0")
    assert "UNSUPPORTED_VERSION" in line


@pytest.mark.covers("J5", "J10")
def test_a_file_of_which_nothing_can_be_asked_asks_for_nothing(bench: CliBench, tmp_path: Path) -> None:
    file = written(tmp_path, {"partitions": [partition(), partition()]})
    found = bench.json(*ELECT, "unclean", "--path-to-json-file", file, code=1)
    assert [item["error"] for item in found["failed"]] == ["INVALID_REQUEST"]
    assert not any(isinstance(request, ElectLeadersRequest) for request in bench.port.requests)


@pytest.mark.covers("G31", "J11")
def test_elections_are_asked_for_20_topics_at_a_time(bench: CliBench, tmp_path: Path) -> None:
    names = [f"t{number:02}" for number in range(45)]
    bench.create_many(names, 0)
    file = written(tmp_path, {"partitions": [partition(name) for name in names]})
    found = bench.json(*ELECT, "preferred", "--path-to-json-file", file)
    assert [item["topic"] for item in found["not_needed"]] == names
    asked = [request for request in bench.port.requests if isinstance(request, ElectLeadersRequest)]
    assert [len(request.topic_partitions or ()) for request in asked] == [20, 20, 5]


@pytest.mark.covers("J5")
@pytest.mark.parametrize("content", [*rows(__file__, "wrong-elections.yaml"), NESTED])
def test_an_election_file_of_another_shape_is_exit_code_2(command: Commands, tmp_path: Path, content: object) -> None:
    file = written(tmp_path, content)
    line = command.refused(*ELECT, "designation", "--path-to-json-file", file)
    assert file in line


def moved(*replicas: int, **more: Any) -> dict[str, Any]:
    return {"version": 1, "partitions": [partition(replicas=list(replicas), **more)]}


@pytest.mark.covers("J18")
def test_a_reassignment_is_started_listed_verified_and_completed(bench: CliBench, tmp_path: Path) -> None:
    bench.create()
    assert bench.produce() == "NONE"
    bench.engine.crash(3, Loss("none"))
    file = written(tmp_path, moved(3, 1, 2))
    out = bench.ok("reassign-partitions", "--execute", "--reassignment-json-file", file)
    assert out.startswith("Current partition replica assignment\n\n")
    before = json.loads(out.splitlines()[2])
    assert before == moved(0, 1, 2, log_dirs=["any"] * 3)
    assert out.endswith("Successfully started partition reassignment for t-0\n")
    verify = ("reassign-partitions", "--verify", "--reassignment-json-file", file)
    assert "Reassignment of partition t-0 is still in progress." in bench.ok(*verify)
    listed = bench.ok("reassign-partitions", "--list").splitlines()
    assert listed == ["Current partition reassignments:", "t-0: replicas: 3,1,2,0. adding: 3. removing: 0."]
    assert "Adding Replicas: 3\tRemoving Replicas: 0" in bench.ok("topics", "--describe")
    bench.start(3)
    bench.await_(lambda: bench.state().replicas == (3, 1, 2))
    assert bench.ok(*verify).splitlines()[1] == "Reassignment of partition t-0 is completed."
    assert bench.ok("reassign-partitions", "--list") == "No partition reassignments found.\n"


@pytest.mark.covers("J18")
def test_a_reassignment_is_cancelled(bench: CliBench, tmp_path: Path) -> None:
    bench.create()
    bench.engine.crash(3, Loss("none"))
    with_file = ("--reassignment-json-file", written(tmp_path, moved(3, 1, 2)))
    bench.ok("reassign-partitions", "--execute", *with_file)
    assert "--additional" in bench.fails("reassign-partitions", "--execute", *with_file)
    bench.ok("reassign-partitions", "--execute", "--additional", *with_file)
    cancelled = bench.ok("reassign-partitions", "--cancel", *with_file)
    assert cancelled == "Successfully cancelled partition reassignment for: t-0\n"
    assert set(bench.state().replicas) == {0, 1, 2}
    again = bench.ok("reassign-partitions", "--cancel", *with_file)
    assert again == "None of the specified partition reassignments are active.\n"
    not_active = "There is no active reassignment of partition t-0, but replica set is 1,2,0 rather than 3,1,2."
    assert not_active in bench.ok("reassign-partitions", "--verify", *with_file)
    assert bench.json("reassign-partitions", "--verify", *with_file) == [partition(state="not_active")]


def test_an_impossible_reassignment_is_exit_code_1(bench: CliBench, tmp_path: Path) -> None:
    bench.create()
    execute = ("reassign-partitions", "--execute", "--reassignment-json-file")
    assert "Unknown broker id 9" in bench.fails(*execute, written(tmp_path, moved(0, 9)))
    elsewhere = {"partitions": [partition("no", replicas=[0])]}
    assert "Unable to find partition: no-0" in bench.fails(*execute, written(tmp_path, elsewhere))
    smaller = (written(tmp_path, moved(0, 1)), "--disallow-replication-factor-change")
    assert "The replication factor is changed from 3 to 2" in bench.fails(*execute, *smaller)
    assert bench.state().replicas == (0, 1, 2)


def test_generate_proposes_a_file_that_execute_takes(bench: CliBench, tmp_path: Path) -> None:
    bench.create("t", "0:1,1:0")
    topics = written(tmp_path, {"version": 1, "topics": [{"topic": "t"}]})
    generate = ("reassign-partitions", "--generate", "--topics-to-move-json-file", topics, "--broker-list", "2,3")
    out = bench.ok(*generate).splitlines()
    assert (out[0], out[3]) == ("Current partition replica assignment", "Proposed partition reassignment configuration")
    proposed = json.loads(out[4])
    assert [sorted(item["replicas"]) for item in proposed["partitions"]] == [[2, 3], [2, 3]]
    bench.ok("reassign-partitions", "--execute", "--reassignment-json-file", written(tmp_path, proposed))
    bench.await_(lambda: set(bench.state().replicas) == {2, 3})
    topics = written(tmp_path, {"topics": [{"topic": "t"}]})
    assert "INVALID_REPLICATION_FACTOR" in bench.fails(*generate[:-1], "2")
    assert "Unknown broker id 8" in bench.fails(*generate[:-1], "2,8")
    assert set(bench.json(*generate)) == {"current", "proposed"}


@pytest.mark.parametrize("content", [*rows(__file__, "wrong-reassignments.yaml"), NESTED])
def test_a_reassignment_file_of_another_shape_is_exit_code_2(
    command: Commands, tmp_path: Path, content: object
) -> None:
    file = written(tmp_path, content)
    assert file in command.refused("reassign-partitions", "--execute", "--reassignment-json-file", file)


@pytest.mark.parametrize("brokers", ["", "x", "1,1", "1,,2", "-1"])
def test_a_wrong_broker_list_is_exit_code_2(command: Commands, tmp_path: Path, brokers: str) -> None:
    file = written(tmp_path, {"topics": [{"topic": "t"}]})
    generate = ("reassign-partitions", "--generate", "--topics-to-move-json-file", file)
    assert "--broker-list" in command.refused(*generate, "--broker-list", brokers)
