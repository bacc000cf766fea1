"""The metrics, each declared once; the reference page, the help texts of exported series and the names that scenarios
expect are read from here.

`CONTROLLER_METRICS` are what a controller measures (requirements I1-I10, D34), on either engine. On ray a node exports
`NODE_METRICS`, and the process that polls the nodes `POLLED_METRICS` (`actors/metrics.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple


class Metric(NamedTuple):
    """The declaration of one metric.

    `unit` is that of its values, `text` what they are in a few words, `source` items of docs/requirements.md (empty:
    none), `detail` what else a reader of them needs. There is a series for each combination of values of `labels`,
    beside the labels that all series of a node have.
    """

    kind: Literal["gauge", "counter", "summary"]
    name: str
    unit: str
    text: str
    source: str = ""
    detail: str = ""
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """Unit and meaning, the help text of a series."""
        return f"{self.unit}: {self.text}"

    def declare(self, among: dict[str, Metric]) -> str:
        among[self.name] = self
        return self.name


CONTROLLER_METRICS: dict[str, Metric] = {}
NODE_METRICS: dict[str, Metric] = {}
POLLED_METRICS: dict[str, Metric] = {}


def _controller(
    kind: Literal["gauge", "counter", "summary"], name: str, unit: str, text: str, source: str = "", detail: str = ""
) -> str:
    return Metric(kind, f"kafka.controller.{name}", unit, text, source, detail).declare(CONTROLLER_METRICS)


_gauge = partial(_controller, "gauge")
_counter = partial(_controller, "counter")
_summary = partial(_controller, "summary")
_PER_PARTITION = ("topic", "partition")
_of_partition = partial(Metric, "gauge", labels=_PER_PARTITION)

_RECOVERY = (
    "0 where recovery is off: those generations elect by the rules of `partition_change.py`. Where it is on, a "
    "partition is under recovery as long as its strategy calls for one, even while no replica is active, or members of "
    "the last known ELR are waited for; and while a recovery runs that a user requested. I3 and I4 have no partition "
    "in common (I7)."
)
_NEEDS_USER = (
    "A leaderless partition that gets a leader only through a user's command: an election, a reassignment, a config. "
    "Where recovery is on these are the partitions for which `recovery_decisions.py` waits for a user, without those "
    "that are being recovered for one. Where it is off, it is a partition that would have no leader even if all its "
    "replicas became active. A partition does not count where ISR or ELR has a member; where "
    "`unclean.leader.election.enable` holds for the topic; in `kip-966-elr` where `last_known_elr` has exactly one "
    "broker. `decide` gives the answer, so it follows the rules in force."
)
_VOTERS = "By the newest set of voters, whether it is committed or not (`protocol/quorum/describe.py`)."
_OBSERVERS = "Brokers, and controllers without a vote, as long as their last fetch is at most five minutes ago."
_FAILOVER = (
    "A failover is the fencing of a broker that led partitions. It ends when every active broker has sent a fetch or a "
    "heartbeat with an offset behind the last record of the failover. One during which no broker is active has no "
    "latency."
)
_REASSIGNMENT = (
    "Observed once per partition; 0 for one that completes in the record that starts it. A reassignment that replaces "
    "another counts from its own start, a cancelled one does not count, and one from before this controller became "
    "active counts from that moment."
)

UNDER_MIN_ISR = _gauge("global_under_min_isr_partition_count", "partitions", "ISR below effective min ISR", "I2")
OFFLINE = _gauge("offline_partitions_count", "partitions", "without a leader", "I8")
UNCLEAN_RECOVERY = _gauge("unclean_recovery_partitions_count", "partitions", "under unclean recovery", "I3", _RECOVERY)
MANUAL_ELECTION_REQUIRED = _gauge(
    "manual_leader_election_required_partition_count", "partitions", "wait for a user", "I4", _NEEDS_USER
)
REASSIGNING = _gauge("reassigning_partitions_count", "partitions", "with a reassignment in progress")
UNCLEAN_RECOVERY_FINISHED = _counter(
    "unclean_recovery_finished_count", "recoveries", "unclean recoveries done", "I5", _RECOVERY
)
UNCLEAN_ELECTIONS = _counter("unclean_leader_elections_count", "elections", "acknowledged records may be lost", "I8")
VOTERS = _gauge("raft.number_of_voters", "controllers", "voters of the quorum", "I9", _VOTERS)
OBSERVERS = _gauge("raft.number_of_observers", "replicas", "fetch the metadata log without a vote", "I9", _OBSERVERS)
UNCOMMITTED_VOTER_CHANGE = _gauge(
    "raft.uncommitted_voter_change", "changes", "of the quorum, not yet committed", "I9", _VOTERS
)
IGNORED_STATIC_VOTERS = _gauge(
    "raft.ignored_static_voters", "controllers", "configured, overridden by the log", "I9", _VOTERS
)
FAILOVER_LATENCY = _summary(
    "failover_latency_ms", "ms", "until all active brokers have applied a fencing", "I10", _FAILOVER
)
FAILOVER_RECORDS = _summary("failover_records", "records", "metadata records written by a failover", "I10")
ALTER_PARTITION_BATCH = _summary("alter_partition_batch_size", "partitions", "proposed in one AlterPartition", "I10")
SHUTDOWN_TIME = _summary("controlled_shutdown_time_ms", "ms", "from a broker's request until it may shut down", "I10")
REASSIGNMENT_DELAY = _summary(
    "reassignment_completion_delay_ms", "ms", "from start to completion", "I10", _REASSIGNMENT
)
_PARTS = {"_count": "number of values in ", "_sum": "sum in ", "_last": "last value in ", "_max": "greatest value in "}
CLUSTER_HELP = {
    f"{metric.name}{part}": f"{words}{metric.help}"
    for metric in CONTROLLER_METRICS.values()
    for part, words in (_PARTS if metric.kind == "summary" else {"": ""}).items()
}
"""The help text of each metric that a controller has once; a summary is four of them."""
CLUSTER_METRICS = tuple(CLUSTER_HELP)
RAFT_METRICS = (VOTERS, OBSERVERS, UNCOMMITTED_VOTER_CHANGE, IGNORED_STATIC_VOTERS)
SUMMARIES = tuple(metric.name for metric in CONTROLLER_METRICS.values() if metric.kind == "summary")
ELECTABLE_LEADERS = _of_partition(
    "kafka.controller.electable_leaders_count", "brokers", "ISR and ELR together", "I1"
).declare(CONTROLLER_METRICS)
PARTITION_METRICS = (ELECTABLE_LEADERS,)
"""What a controller measures of each partition."""

_POLLED = (
    "The sum over a cluster is right while its nodes die and fail over. Ray serves the other gauges of a process that "
    "was killed for up to 20 s more, with their last values. Sums of them leave out such a node, and the controllers "
    "that are not active, by these two: "
    "`sum by (cluster) (ray_isray_high_watermark_lag * on (cluster, node) group_left ray_isray_node_running)`, "
    "`sum by (cluster) (ray_kafka_controller_offline_partitions_count * on (cluster, node) group_left "
    "ray_kafka_controller_active_controller_count)`."
)
_polled = partial(Metric, "gauge", detail=_POLLED)

MESSAGES_SENT = Metric(
    "counter", "isray_messages_sent", "messages", "those that the node sent, by type", labels=("type",)
).declare(NODE_METRICS)
PRODUCE_REQUESTS = Metric(
    "counter", "isray_produce_requests", "requests", "produce requests that a broker took, by acks", labels=("acks",)
).declare(NODE_METRICS)
ELECTIONS = Metric(
    "counter",
    "isray_elections",
    "elections",
    "leaders that the controller elected, the first one included",
    detail="A restarted controller knows no earlier epochs, and counts from a partition's second change on.",
    labels=_PER_PARTITION,
).declare(NODE_METRICS)
ISR_SIZE = _of_partition("isray_isr_size", "brokers", "those in the ISR, by the controller's record").declare(
    NODE_METRICS
)
ELR_SIZE = _of_partition("isray_elr_size", "brokers", "eligible leader replicas, by the controller's record").declare(
    NODE_METRICS
)
HIGH_WATERMARK_LAG = _of_partition(
    "isray_high_watermark_lag", "records", "uncommitted ones at the leader; 0 on a follower"
).declare(NODE_METRICS)
ELECTABLE_LEADERS_COUNT = _of_partition(
    ELECTABLE_LEADERS.replace(".", "_"), "brokers", "those in ISR or ELR, by the controller's record"
).declare(NODE_METRICS)
NODE_RUNNING = _polled("isray_node_running", "nodes", "1 while the node's process runs, 0 once it has ended").declare(
    POLLED_METRICS
)
ACTIVE_CONTROLLER = _polled(
    "kafka_controller_active_controller_count", "controllers", "1 on the active controller, 0 elsewhere"
).declare(POLLED_METRICS)
