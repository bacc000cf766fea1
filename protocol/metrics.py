"""The metrics, each declared once; the reference page, the help texts of exported series and the names that scenarios
expect are read from here.

`CONTROLLER_METRICS` are what a controller measures (requirements I1-I10, D34), on either engine. On ray a node exports
`NODE_METRICS`, and the process that polls the nodes `POLLED_METRICS` (`actors/metrics.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "summary"]


class Metric(NamedTuple):
    """The declaration of one metric.

    `unit` is that of its values, `source` items of docs/requirements.md (empty: none), `text` what the values are in a
    few words, `detail` what else a reader of them needs. There is a series for each combination of values of `labels`,
    beside the labels that all series of a node have.
    """

    name: str
    kind: Kind
    unit: str
    source: str
    text: str
    detail: str = ""
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """Unit and meaning, the help text of a series."""
        return f"{self.unit}: {self.text}"


CONTROLLER_METRICS: dict[str, Metric] = {}
"""Those of a controller, by name."""
NODE_METRICS: dict[str, Metric] = {}
"""Those that a node exports on ray, by name, besides what its controller measures."""
POLLED_METRICS: dict[str, Metric] = {}
"""Those that the process which polls the nodes exports, by name."""
PER_PARTITION = ("topic", "partition")


def _declare(
    among: dict[str, Metric],
    kind: Kind,
    name: str,
    unit: str,
    source: str,
    text: str,
    detail: str = "",
    labels: tuple[str, ...] = (),
) -> str:
    """Adds a metric to `among` and returns its name."""
    among[name] = Metric(name, kind, unit, source, text, detail, labels)
    return name


_gauge = partial(_declare, CONTROLLER_METRICS, "gauge")
_counter = partial(_declare, CONTROLLER_METRICS, "counter")
_summary = partial(_declare, CONTROLLER_METRICS, "summary")

_RECOVERY = (
    "0 where recovery is off: those generations elect by the rules of `partition_election.py`. Where it is on, a "
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
_FAILOVER = (
    "A failover is the fencing of a broker that led partitions. It ends when every active broker has sent a fetch or a "
    "heartbeat with an offset behind the last record of the failover. One during which no broker is active has no "
    "latency."
)
_REASSIGNMENT = (
    "Observed once per partition; 0 for one that completes in the record that starts it. A reassignment that replaces "
    "another begins anew, a cancelled one does not count, and one from before this controller became active counts "
    "from that moment."
)

UNDER_MIN_ISR = _gauge(
    "kafka.controller.global_under_min_isr_partition_count", "partitions", "I2", "ISR below effective min ISR"
)
OFFLINE = _gauge("kafka.controller.offline_partitions_count", "partitions", "I8", "without a leader")
UNCLEAN_RECOVERY = _gauge(
    "kafka.controller.unclean_recovery_partitions_count", "partitions", "I3", "under unclean recovery", _RECOVERY
)
MANUAL_ELECTION_REQUIRED = _gauge(
    "kafka.controller.manual_leader_election_required_partition_count",
    "partitions",
    "I4",
    "wait for a user",
    _NEEDS_USER,
)
REASSIGNING = _gauge(
    "kafka.controller.reassigning_partitions_count", "partitions", "", "with a reassignment in progress"
)
UNCLEAN_RECOVERY_FINISHED = _counter(
    "kafka.controller.unclean_recovery_finished_count", "recoveries", "I5", "unclean recoveries done", _RECOVERY
)
UNCLEAN_ELECTIONS = _counter(
    "kafka.controller.unclean_leader_elections_count", "elections", "I8", "acknowledged records may be lost"
)
VOTERS = _gauge("kafka.controller.raft.number_of_voters", "controllers", "I9", "voters of the quorum", _VOTERS)
OBSERVERS = _gauge(
    "kafka.controller.raft.number_of_observers",
    "replicas",
    "I9",
    "fetch the metadata log without a vote",
    "Brokers, and controllers without a vote, as long as their last fetch is at most five minutes ago.",
)
UNCOMMITTED_VOTER_CHANGE = _gauge(
    "kafka.controller.raft.uncommitted_voter_change", "changes", "I9", "of the quorum, not yet committed", _VOTERS
)
IGNORED_STATIC_VOTERS = _gauge(
    "kafka.controller.raft.ignored_static_voters", "controllers", "I9", "configured, overridden by the log", _VOTERS
)
FAILOVER_LATENCY = _summary(
    "kafka.controller.failover_latency_ms", "ms", "I10", "until all active brokers have applied a fencing", _FAILOVER
)
FAILOVER_RECORDS = _summary(
    "kafka.controller.failover_records", "records", "I10", "metadata records written by a failover"
)
ALTER_PARTITION_BATCH = _summary(
    "kafka.controller.alter_partition_batch_size", "partitions", "I10", "proposed in one AlterPartition"
)
SHUTDOWN_TIME = _summary(
    "kafka.controller.controlled_shutdown_time_ms", "ms", "I10", "from a broker's request until it may shut down"
)
REASSIGNMENT_DELAY = _summary(
    "kafka.controller.reassignment_completion_delay_ms", "ms", "I10", "from start to completion", _REASSIGNMENT
)
ELECTABLE_LEADERS = _gauge(
    "kafka.controller.electable_leaders_count", "brokers", "I1", "ISR and ELR together", labels=PER_PARTITION
)

RAFT_METRICS = (VOTERS, OBSERVERS, UNCOMMITTED_VOTER_CHANGE, IGNORED_STATIC_VOTERS)
SUMMARIES = tuple(metric.name for metric in CONTROLLER_METRICS.values() if metric.kind == "summary")
PARTITION_METRICS = tuple(metric.name for metric in CONTROLLER_METRICS.values() if metric.labels)
"""What is measured of each partition."""
_PARTS = {"_count": "number of values in ", "_sum": "sum in ", "_last": "last value in ", "_max": "greatest value in "}
CLUSTER_HELP = {
    f"{metric.name}{part}": f"{words}{metric.help}"
    for metric in CONTROLLER_METRICS.values()
    if not metric.labels
    for part, words in (_PARTS if metric.kind == "summary" else {"": ""}).items()
}
"""The help text of each metric that a controller has once; a summary is four of them."""
CLUSTER_METRICS = tuple(CLUSTER_HELP)

_of_node = partial(_declare, NODE_METRICS)
_of_partition = partial(_declare, NODE_METRICS, "gauge", unit="brokers", source="", labels=PER_PARTITION)
_polled = partial(_declare, POLLED_METRICS, "gauge")
_POLLED = (
    "The sum over a cluster is right while its nodes die and fail over. Ray serves the other gauges of a process that "
    "was killed for up to 20 s more, with their last values. Sums of them leave out such a node, and the controllers "
    "that are not active, by these two: "
    "`sum by (cluster) (ray_isray_high_watermark_lag * on (cluster, node) group_left ray_isray_node_running)`, "
    "`sum by (cluster) (ray_kafka_controller_offline_partitions_count * on (cluster, node) group_left "
    "ray_kafka_controller_active_controller_count)`."
)

MESSAGES_SENT = _of_node(
    "counter", "isray_messages_sent", "messages", "", "those that the node sent, by type", labels=("type",)
)
PRODUCE_REQUESTS = _of_node(
    "counter",
    "isray_produce_requests",
    "requests",
    "",
    "produce requests that a broker took, by acks",
    "Acks are 0, 1 or -1 (all).",
    labels=("acks",),
)
ELECTIONS = _of_node(
    "counter",
    "isray_elections",
    "elections",
    "",
    "leaders that the controller elected, the first one included",
    "A restarted controller does not know the earlier leader epochs and counts from a partition's second change on.",
    PER_PARTITION,
)
ISR_SIZE = _of_partition("isray_isr_size", text="those in the ISR, by the controller's record")
ELR_SIZE = _of_partition("isray_elr_size", text="eligible leader replicas, by the controller's record")
HIGH_WATERMARK_LAG = _of_partition(
    "isray_high_watermark_lag", unit="records", text="uncommitted ones at the leader; 0 on a follower"
)
ELECTABLE_LEADERS_COUNT = _of_partition(
    ELECTABLE_LEADERS.replace(".", "_"), text="those in ISR or ELR, by the controller's record"
)
NODE_RUNNING = _polled(
    "isray_node_running", "nodes", "", "1 while the node's process runs, 0 once it has ended", _POLLED
)
ACTIVE_CONTROLLER = _polled(
    "kafka_controller_active_controller_count",
    "controllers",
    "",
    "1 on the active controller, 0 elsewhere",
    _POLLED,
)
