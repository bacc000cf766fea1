"""Three controllers on ray: the active one is killed under load, disks are damaged, voters change, and nothing is lost.

A controller that dies is missed after `controller.quorum.fetch.timeout.ms` (2 s); then the others elect. How long that
takes is measured by `isray bench quorum`; here it is waited for, and what counts is what the next one knows and does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import pytest

from actors.failures import NodeFailedError
from experiments.check.check_recording import CheckResult, check
from experiments.check.client_history import ended
from experiments.check.final_logs import final_logs
from experiments.check.history import Invoked
from experiments.check.recording import Header, Recording, RecordingWriter
from experiments.engines.port import Loss, TraceEvent
from experiments.scenarios.clients import ranges_of
from protocol.errors import ErrorCode
from protocol.ids import NO_LEADER, RECOVERY_MANAGER, BrokerId, NodeId
from protocol.messages.commands import ProduceCommand, ProduceOutcome
from protocol.quorum.log import SNAPSHOT_FILE
from protocol.quorum.state_file import FILE as STATE_FILE
from tests.ray.cluster_helpers import ALL, T0, WITHIN_MS, ProcessPool, RunningCluster, content, running_cluster
from tests.sim.seed_helpers import some

IN_FLIGHT = 10
BETWEEN_KILLS = 50
"""Records that are acknowledged before each kill, and after it."""


@dataclass
class Load:
    """A client that keeps `IN_FLIGHT` records in flight to `t-0` until `finish`. `acknowledged` maps payloads to their
    offsets; invocations and outcomes are written to the recording.
    """

    cluster: RunningCluster
    writer: RecordingWriter
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    under_way: dict[int, bytes] = field(default_factory=dict)
    goes_on: bool = True

    def tick(self) -> None:
        """Takes the outcomes that have arrived and submits as many new records."""
        for number in list(self.under_way):
            outcome = self.cluster.engine.outcome(number)
            if isinstance(outcome, ProduceOutcome):
                self._ended(number, self.under_way.pop(number), outcome)
        while self.goes_on and len(self.under_way) < IN_FLIGHT:
            number = self.cluster.submit(self._command)
            self.under_way[number] = payload_of(number)

    def _command(self, number: int) -> ProduceCommand:
        self.writer.operation(Invoked(number, 0, T0, 1, True))
        return ProduceCommand(
            command_id=number, topic="t", partition=0, acks=ALL, record_count=1, payload=payload_of(number)
        )

    def _ended(self, number: int, payload: bytes, outcome: ProduceOutcome) -> None:
        assert outcome.error is ErrorCode.NONE, outcome
        self.acknowledged[payload] = outcome.base_offset
        for operation in ended(outcome):
            self.writer.operation(operation)

    def await_more(self) -> None:
        """Waits for `BETWEEN_KILLS` more acknowledgements."""
        enough = len(self.acknowledged) + BETWEEN_KILLS
        self.cluster.until(lambda: len(self.acknowledged) >= enough, "more records are acknowledged")

    def finish(self) -> None:
        self.goes_on = False
        self.cluster.until(lambda: not self.under_way, "every record is acknowledged")


def payload_of(number: int) -> bytes:
    packed: bytes = msgpack.packb([number])
    return packed


def await_role(cluster: RunningCluster, controller: NodeId, role: str) -> None:
    def has_role() -> bool:
        part = cluster.engine.quorum().get(controller)
        return part is not None and part.role == role

    cluster.until(has_role, f"controller {controller} is {role}")


@dataclass
class Recorder:
    """Passes events on to the writer until `is_open` is false."""

    writer: RecordingWriter
    is_open: bool = True

    def event(self, event: TraceEvent) -> None:
        if self.is_open:
            self.writer.event(event)


@dataclass
class RecordedCluster:
    """A cluster whose events and client history are recorded until `check`."""

    cluster: RunningCluster
    folder: Path
    recorder: Recorder

    def check(self) -> CheckResult:
        """Ends the recording and checks it."""
        self.cluster.meanwhile = lambda: None
        self.recorder.is_open = False
        engine, writer = self.cluster.engine, self.recorder.writer
        finals = final_logs(engine, ranges_of)
        writer.metadata(engine.metadata_log())
        writer.finish(Header.of("quorum", "ray", engine.spec, nothing_may_be_lost=True), finals)
        return check(Recording(self.folder))


@pytest.fixture(scope="module")
def recorded(pool: ProcessPool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedCluster]:
    """Three controllers and three brokers, topic `t` on all of these."""
    folder = tmp_path_factory.mktemp("recording")
    recorder = Recorder(RecordingWriter(folder))
    with running_cluster(controllers=3, record_to=recorder.event, pool=pool) as cluster:
        cluster.create_topic((0, 1, 2), min_isr=2, config={"unclean.recovery.strategy": "balanced"})
        yield RecordedCluster(cluster, folder, recorder)
    recorder.writer.close()


@pytest.fixture
def cluster(recorded: RecordedCluster) -> RunningCluster:
    """The recorded cluster, for tests that need no recording."""
    return recorded.cluster


# -- failover ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("D22", "J4")
def test_nothing_is_lost_when_the_active_controller_is_killed_under_load(recorded: RecordedCluster) -> None:
    cluster, load = recorded.cluster, Load(recorded.cluster, recorded.recorder.writer)
    cluster.meanwhile = load.tick
    load.await_more()
    for topic in ("u", "v"):
        committed = list(cluster.engine.metadata_log())
        killed, _ = cluster.kill_the_active_controller()
        cluster.create_topic((2, 1), min_isr=1, name=topic)
        assert list(cluster.engine.metadata_log())[: len(committed)] == committed
        load.await_more()
        cluster.engine.start(killed)
        await_role(cluster, killed, "follower")
    check_brokers_follow_the_active_controller(cluster)
    load.finish()
    view = cluster.engine.view()
    assert view is not None
    assert {name.topic for name in view.partitions} == {"t", "u", "v"}
    held = {batch.payload: batch.base_offset for batch in cluster.engine.log(view.partitions[T0].leader, T0)}
    assert load.acknowledged.items() <= held.items()
    checked = recorded.check()
    assert (checked.violations, checked.unjudged) == ([], [])
    assert checked.operations >= 2 * len(load.acknowledged) >= 2 * 3 * BETWEEN_KILLS


def check_brokers_follow_the_active_controller(cluster: RunningCluster) -> None:
    """Brokers hold sessions with it, it commits ISR changes, and it registers a restarted broker."""
    active = cluster.active_controller()
    cluster.await_unfenced(0, 1, 2)
    [dead] = {0, 1, 2} - {cluster.leader(), other_than(cluster.leader())}
    cluster.engine.crash(dead, Loss())
    cluster.await_partition("the dead broker has left the ISR", isr={0, 1, 2} - {dead})
    cluster.engine.start(dead)
    cluster.await_whole()
    registrations = [event for event in cluster.engine.traces() if event.trace.kind == "broker_registration"]
    assert registrations[-1].node == active


def other_than(broker: BrokerId) -> BrokerId:
    return (broker + 1) % 3


# -- disks -----------------------------------------------------------------------------------------------------------


DAMAGES: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "quorum-state": (STATE_FILE, lambda data: data[:-2], "CorruptLogError: quorum-state: found"),
    "snapshot": (SNAPSHOT_FILE, lambda data: b"\xc1" * 20, "CorruptLogError: checkpoint: found 20 bytes that fail"),
    "another-cluster": (
        STATE_FILE,
        lambda data: data.replace(b'"clusterId": "', b'"clusterId": "x'),
        "ForeignDirectoryError: quorum-state: clusterId: found 'xisray-",
    ),
}


@pytest.mark.parametrize("damage", some([*DAMAGES], first=1))
def test_controller_with_a_damaged_disk_is_refused_in_one_line_and_the_others_continue(
    cluster: RunningCluster, damage: str
) -> None:
    name, change, what = DAMAGES[damage]
    follower = next(node for node in cluster.engine.spec.controller_ids if node != cluster.active_controller())
    cluster.engine.crash(follower, Loss())
    path = cluster.engine.cluster.directory(follower) / name
    sound = path.read_bytes() if path.exists() else None
    path.write_bytes(change(sound or b""))
    before = content(path.parent)
    cluster.engine.start(follower)
    with pytest.raises(NodeFailedError) as caught:
        cluster.engine.run_until(lambda: False, WITHIN_MS)
    assert str(caught.value).startswith(f"controller-{follower} failed: {what}")
    assert "\n" not in str(caught.value)
    assert content(path.parent) == before
    cluster.create_topic((1, 2), min_isr=1, name=damage)
    path.unlink() if sound is None else path.write_bytes(sound)
    cluster.engine.start(follower)
    await_role(cluster, follower, "follower")


# -- recoveries --------------------------------------------------------------------------------------------------------


@pytest.mark.covers("M68")
def test_recovery_in_progress_is_restarted_by_the_next_active_controller(cluster: RunningCluster) -> None:
    assert cluster.produce(*(b"%d" % number for number in range(4))) == [ErrorCode.NONE] * 4
    first = cluster.leader()
    cluster.engine.crash(first, Loss())
    cluster.until(lambda: cluster.leader() not in (first, NO_LEADER), "the next replica leads")
    second = cluster.leader()
    [third] = {0, 1, 2} - {first, second}
    cluster.await_partition("the first has left the ISR", isr={second, third})
    cluster.engine.flush(third)
    cluster.engine.crash(second, Loss("unflushed"))
    cluster.await_partition("the third is the only ISR member", leader=third, isr={third})
    cluster.engine.crash(third, Loss("unflushed"))
    cluster.await_partition("the partition has no leader", leader=NO_LEADER)
    cluster.cut(RECOVERY_MANAGER, third)
    for broker in (second, third):
        cluster.engine.start(broker)
    cluster.until(lambda: has_begun_recovery(cluster, cluster.engine.active_controller()), "a recovery is under way")
    _, successor = cluster.kill_the_active_controller()
    cluster.until(lambda: has_begun_recovery(cluster, successor), "the next controller begins another recovery")
    assert cluster.leader() == NO_LEADER
    cluster.engine.heal_links()
    cluster.await_partition("the third, which held all records, leads", leader=third, isr={second, third})
    assert cluster.payloads(third)[-4:] == [b"%d" % number for number in range(4)]
    events = [event for event in cluster.engine.traces() if event.trace.kind == "became_leader"]
    leaders = {(event.trace.leader_epoch, event.node) for event in events if event.trace.about() == T0}
    assert len({epoch for epoch, _ in leaders}) == len(leaders)


def has_begun_recovery(cluster: RunningCluster, controller: NodeId | None) -> bool:
    """Whether a controller has begun a recovery of `t-0`."""
    events = [event for event in cluster.engine.traces() if event.trace.kind == "recovery_began"]
    return any(event.node == controller and event.trace.partition == T0 for event in events)
