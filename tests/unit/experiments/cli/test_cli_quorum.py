"""`isray metadata-quorum` against a simulated quorum (`experiments/hunt/quorum/harness.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from experiments.cli import cluster_access
from experiments.cli.cluster_access import Opened, Target
from experiments.engines.admin_client import AdminClient
from experiments.engines.port import Loss
from experiments.hunt.quorum.harness import CLUSTER, QuorumHarness
from protocol.ids import NodeId, uuid_text
from protocol.messages.admin import AdminRequest, AdminResponse
from protocol.messages.quorum import DescribeQuorumRequest, DescribeQuorumResponse
from protocol.quorum.describe import describe_quorum
from protocol.quorum.replica import QuorumReplica
from tests.unit.experiments.cli.cli_helpers import Commands, no_supervisor
from tests.yaml_rows import rows

WITHIN_MS = 60_000
KAFKAS_TITLE = (
    "NodeId\tDirectoryId           \tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus  \t"
)
OTHER_DISK = uuid_text(7)


class QuorumBench(Commands):
    """Three controllers and a broker; 1000 leads, the others have been added as far as `voters` says. `requests` are
    the requests made so far.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], voters: int = 1, static: bool = False
    ) -> None:
        super().__init__(monkeypatch, capsys)
        self.harness = QuorumHarness(f"cli/{voters}/{static}", 3, static=static, observers=1)
        self.requests: list[AdminRequest] = []
        self.harness.start(*self.harness.disks)
        self.settle()
        monkeypatch.setattr(cluster_access, "open_admin", self._open_admin)
        for node in self.harness.ids[1:voters]:
            self.ok("metadata-quorum", "add-controller", "--controller-id", str(node))

    @contextmanager
    def _open_admin(self, wanted: Target, asks_nodes: bool = False) -> Iterator[Opened]:
        self.targets.append(wanted)
        yield Opened(AdminClient(self, wanted.principal), set(), no_supervisor, lambda name: None)

    def call(self, request: AdminRequest) -> AdminResponse:
        """`experiments.engines.admin_client.AdminChannel`: every request goes to the leader."""
        self.requests.append(request)
        if isinstance(request, DescribeQuorumRequest):
            return describe_quorum(self.leader, self.harness.now_ms, request)
        self.harness.responses.clear()
        self.harness.submit(self.leader.key.id, request)
        assert self.harness.run_until(lambda: bool(self.harness.responses), WITHIN_MS)
        answer = self.harness.responses[0]
        assert isinstance(answer, AdminResponse)
        return answer

    @property
    def leader(self) -> QuorumReplica:
        assert self.harness.run_until(lambda: self.harness.leader is not None, WITHIN_MS)
        found = self.harness.leader
        assert found is not None
        return found

    def settle(self) -> None:
        """All replicas have the whole log, and the leader knows it."""
        self.harness.heal()
        assert self.harness.run_until(lambda: self.harness.is_settled() and not self.lags(), WITHIN_MS)

    def described(self) -> DescribeQuorumResponse:
        return describe_quorum(self.leader, self.harness.now_ms, DescribeQuorumRequest(correlation_id=0))

    def lags(self) -> list[NodeId]:
        """The replicas that lack records, as the leader knows them."""
        found = self.described()
        return [state.replica_id for state in (*found.voters, *found.observers) if state.lag]

    def observers(self) -> list[NodeId]:
        return [state.replica_id for state in self.described().observers]

    def uuid(self, node: NodeId) -> str:
        return self.harness.nodes[node].replica.key.uuid

    def voters(self) -> list[NodeId]:
        return [key.id for key in self.leader.voters.keys]


MakeQuorum = Callable[..., QuorumBench]


@pytest.fixture
def make_bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> MakeQuorum:
    return partial(QuorumBench, monkeypatch, capsys)


def add(node: NodeId, *more: str) -> tuple[str, ...]:
    return ("metadata-quorum", "add-controller", "--controller-id", str(node), *more)


def remove(node: NodeId, *more: str) -> tuple[str, ...]:
    return ("metadata-quorum", "remove-controller", "--controller-id", str(node), *more)


@pytest.mark.covers("J16", "D29")
def test_the_status_of_a_quorum(bench: QuorumBench) -> None:
    bench.ok(*add(1001, "--endpoint", "CONTROLLER://localhost:9093"))
    bench.settle()
    end = bench.leader.log.end_offset
    lines = bench.ok("metadata-quorum", "describe", "--status").splitlines()
    one, two, three = (bench.uuid(node) for node in bench.harness.ids)
    assert [line.split(maxsplit=1) for line in lines] == [
        ["ClusterId:", CLUSTER],
        ["LeaderId:", "1000"],
        ["LeaderEpoch:", "1"],
        ["HighWatermark:", str(end)],
        ["MaxFollowerLag:", "0"],
        ["MaxFollowerLagTimeMs:", "0"],
        [
            "CurrentVoters:",
            f'[{{"id": 1000, "directoryId": "{one}"}}, '
            f'{{"id": 1001, "directoryId": "{two}", "endpoints": ["CONTROLLER://localhost:9093"]}}]',
        ],
        ["CurrentObservers:", f'[{{"id": 0}}, {{"id": 1002, "directoryId": "{three}"}}]'],
    ]
    bench.harness.crash(1001)
    bench.harness.append()
    document = bench.json("metadata-quorum", "describe", "--status")
    assert document["max_follower_lag"] == 1
    bench.harness.run_for(700)
    later = bench.json("metadata-quorum", "describe", "--status")
    assert later["max_follower_lag_time_ms"] == document["max_follower_lag_time_ms"] + 700
    assert document["current_voters"][1] == {
        "id": 1001,
        "directory_id": two,
        "endpoints": ["CONTROLLER://localhost:9093"],
    }


@pytest.mark.covers("J16", "D29")
def test_how_far_each_replica_is(bench: QuorumBench) -> None:
    bench.ok(*add(1001))
    bench.settle()
    end, now = str(bench.leader.log.end_offset), bench.harness.now_ms
    title, *rows = bench.ok("metadata-quorum", "describe", "--replication").splitlines()
    assert title == KAFKAS_TITLE
    assert {len(row.expandtabs()) for row in rows} == {len(title.expandtabs())}
    cells = [[cell.rstrip() for cell in row.split("\t")] for row in rows]
    assert [[*row[:4], *row[6:]] for row in cells] == [
        ["1000", bench.uuid(1000), end, "0", "Leader", ""],
        ["1001", bench.uuid(1001), end, "0", "Follower", ""],
        ["0", "A" * 22, end, "0", "Observer", ""],
        ["1002", bench.uuid(1002), end, "0", "Observer", ""],
    ]
    assert cells[0][4:6] == [str(now)] * 2
    assert [0 <= now - int(cell) < 1_000 for row in cells for cell in row[4:6]] == [True] * 8
    document = bench.json("metadata-quorum", "describe", "--replication")
    assert document["now_ms"] == now
    times = [[str(row["last_fetch_ms"]), str(row["last_caught_up_ms"])] for row in document["replicas"]]
    assert times == [row[4:6] for row in cells]
    assert [row["promotable"] for row in document["replicas"]] == [True, True, False, True]
    words = bench.ok("metadata-quorum", "describe", "--replication", "--human-readable").splitlines()[1]
    assert words.split("\t")[4].rstrip() == words.split("\t")[5].rstrip() == "0 ms ago"


def test_a_voter_that_is_down_lacks_records_since_it_was_caught_up_and_is_not_promotable(bench: QuorumBench) -> None:
    bench.ok(*add(1001))
    bench.ok(*add(1002))
    bench.settle()
    bench.harness.crash(1001)
    down_ms = bench.harness.now_ms
    bench.harness.append()
    bench.harness.run_for(2 * bench.leader.config.fetch_ms)
    rows = bench.json("metadata-quorum", "describe", "--replication")["replicas"]
    [down] = [row for row in rows if row["node_id"] == 1001]
    assert (down["lag"], down["promotable"], down["status"]) == (1, False, "Follower")
    assert down_ms - 1_000 < down["last_caught_up_ms"] <= down["last_fetch_ms"] < down_ms + 100  # one under way
    assert [row["promotable"] for row in rows if row["node_id"] in (1000, 1002)] == [True, True]


def test_a_voter_that_never_fetched_has_no_fetch_time(make_bench: MakeQuorum) -> None:
    bench = make_bench(static=True)
    gone = next(node for node in bench.harness.ids if node != bench.leader.key.id)
    bench.harness.crash(gone)
    bench.harness.crash(bench.leader.key.id)
    bench.harness.start(next(node for node in bench.harness.ids if node not in bench.harness.nodes and node != gone))
    end = bench.leader.log.end_offset
    rows = bench.json("metadata-quorum", "describe", "--replication")["replicas"]
    [row] = [row for row in rows if row["node_id"] == gone]
    assert (row["log_end_offset"], row["lag"], row["last_fetch_ms"], row["status"]) == (-1, end, -1, "Follower")
    lines = bench.ok("metadata-quorum", "describe", "--replication", "--human-readable").splitlines()
    assert [line for line in lines if line.startswith(str(gone)) and line.count("\t-1 ") == 3]


@pytest.mark.covers("D30", "D31", "J17", "M77")
def test_one_voter_becomes_three_and_two_again(bench: QuorumBench) -> None:
    uuid = bench.uuid(1001)
    assert bench.ok(*add(1001)) == f"Added controller 1001 with directory id {uuid} and endpoints: none\n"
    document = bench.json(*add(1002, "--controller-directory-id", bench.uuid(1002)))
    assert document == {"controller_id": 1002, "directory_id": bench.uuid(1002), "added": True}
    assert bench.voters() == [1000, 1001, 1002]
    assert bench.ok(*remove(1001)) == f"Removed controller 1001 with directory id {uuid}\n"
    assert bench.voters() == [1000, 1002]
    assert bench.json(*remove(1002, "-d", bench.uuid(1002)))["removed"] is True
    assert bench.voters() == [1000]


def test_a_dry_run_prints_the_request_and_changes_nothing(bench: QuorumBench) -> None:
    said = bench.ok(*add(1001, "--dry-run", "--endpoint", "C://h:1"))
    assert said == f"DRY RUN of adding controller 1001 with directory id {bench.uuid(1001)} and endpoints: C://h:1\n"
    said = bench.ok(*remove(1000, "--dry-run"))
    assert said == f"DRY RUN of removing controller 1000 with directory id {bench.uuid(1000)}\n"
    assert {type(request) for request in bench.requests} == {DescribeQuorumRequest}


@pytest.mark.covers("D32", "M78")
def test_a_replaced_disk_is_removed_and_added_by_the_controllers_id(make_bench: MakeQuorum) -> None:
    bench = make_bench(voters=3)
    old = bench.uuid(1001)
    bench.harness.crash(1001, Loss("all"))
    bench.harness.start(1001)
    new = bench.uuid(1001)
    assert bench.harness.run_until(lambda: 1001 in bench.observers(), WITHIN_MS)
    bench.harness.run_for(bench.leader.config.fetch_ms)
    failed = bench.fails(*add(1001))
    assert f"DUPLICATE_VOTER: 1001:{old} has the id of 1001:{new}; remove it first" in failed
    assert old in bench.ok(*remove(1001))
    assert new in bench.ok(*add(1001))


@pytest.mark.covers("D14", "D20")
@pytest.mark.parametrize(("arguments", "message"), rows(__file__, "refused-changes.yaml"))
def test_impossible_voter_changes_are_one_line_and_exit_code_1(
    bench: QuorumBench, arguments: str, message: str
) -> None:
    disks = [*(bench.uuid(node) for node in bench.harness.ids), OTHER_DISK]
    command, expected = ("metadata-quorum", *arguments.format(*disks).split()), message.format(*disks)
    assert bench.fails(*command) == f"Error while executing metadata quorum command: {expected}\n"
    error, _, text = expected.partition(": ")
    assert bench.json(*command, code=1) == {"error": error, "message": text}
    assert bench.voters() == [1000]


def test_the_directory_id_selects_one_of_two_disks_of_a_controller(bench: QuorumBench) -> None:
    first = bench.uuid(1001)
    bench.harness.crash(1001, Loss("all"))
    bench.harness.start(1001)
    assert bench.harness.run_until(lambda: bench.observers().count(1001) == 2, WITHIN_MS)
    both = ", ".join(sorted([first, bench.uuid(1001)]))
    assert f"several disks of controller 1001 fetch: {both}; give its directory id" in bench.fails(*add(1001))
    bench.ok(*add(1001, "-d", bench.uuid(1001)))


@pytest.mark.covers("M83")
def test_changes_of_static_voters_are_refused(make_bench: MakeQuorum) -> None:
    bench = make_bench(static=True)
    failed = bench.fails(*add(1001, "-d", bench.uuid(1001), "--endpoint", "C://h:1"))
    assert "INVALID_REQUEST: endpoints are set by controller.quorum.voters" in failed
    assert "controller.quorum.voters does not list replica 1009" in bench.fails(*add(1009, "-d", OTHER_DISK))
    assert "controller.quorum.voters lists the voters" in bench.fails(*remove(1001))
    bench.ok(*add(1001, "-d", bench.uuid(1001)))
    assert bench.voters() == [1000, 1001, 1002]


def test_requests_are_made_where_and_as_the_options_say(bench: QuorumBench) -> None:
    bench.ok("metadata-quorum", "--bootstrap-server", "h:1", "describe", "--status", "--principal", "User:alice")
    assert (bench.targets[-1].bootstrap, bench.targets[-1].principal) == ("h:1", "User:alice")
    assert bench.requests[-1].principal == "User:alice"
