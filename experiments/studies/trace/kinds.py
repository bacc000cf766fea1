"""What a trial observes, each kind as a type: its fields with their units, the columns that it fills, and its rules.

A trace lists, in time order, what a study measures. A :class:`State` follows every change of the state of a partition,
so that quantities over time (offline, rejecting, stalled) are sums of intervals between states. Each counted event and
each measured time is a row of its own.

A simulated trial also lists what its losses can be computed from again (`FOLLOWED`). The simulator finds losses by
comparing the records' payloads; the pipeline finds them from these rows, with numpy and by a join in Spark, and
compares (`pipeline/spark.py`).

A class is the declaration of its kind. A field fills the column of its name, or the one that its :class:`In` names,
which may also say the least value. Times of rows do not decrease. `rules.py` checks rows against these declarations:
those that workers write and those of files, of whatever program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, ClassVar, Final, NamedTuple, get_type_hints

from experiments.studies.trace.schema import TraceRow
from protocol.values import immutable


class In(NamedTuple):
    """The column that a field fills. `least`: the least value allowed; `below`: what a smaller one is called."""

    column: str
    least: int | None = None
    below: str = ""


OfNode = Annotated[int, In("node")]
Value = Annotated[int, In("value")]
Detail = Annotated[str, In("detail")]
LostRecords = Annotated[int, In("value", 1, "a loss of no records")]


class Observation:
    """Base of the kinds. `KIND`: the name in files. `BEGINS_PARTITION`: the first row of each partition is of this
    kind, at time 0. `ENDS_TRIAL`: the last row of a trial, and only it, is of this kind, at the trial's duration (in
    importance sampling after it, where a cycle is completed)."""

    __slots__ = ()
    KIND: ClassVar[str]
    BEGINS_PARTITION: ClassVar[bool] = False
    ENDS_TRIAL: ClassVar[bool] = False


@immutable
class State(Observation):
    """The state of a partition from now on. `leader`: -1 = offline; `leader_serves`: False = a leader is recorded but
    does not answer; `isr_size`: 0 without a leader; `min_isr`: the effective one; `epoch`: the leader epoch; `isr`,
    `elr`: the controller's members, broker ids joined by commas; `recovering`: the leader has yet to report that it
    recovered from an unclean election; `stalls`: writes wait for a replica that has crashed or is slow: a member of the
    ISR, with acks=all, or the leader; `expired`: writes have waited for longer than the delivery timeout."""

    KIND = "state"
    BEGINS_PARTITION = True
    partition: int
    leader: int
    leader_serves: bool
    isr_size: int
    elr_size: int
    min_isr: int
    epoch: int = -1
    isr: str = ""
    elr: str = ""
    recovering: bool = False
    stalls: bool = False
    expired: bool = False


@immutable
class AtLeader(Observation):
    """Base of what is observed of a partition at its leader."""

    partition: int
    leader: OfNode


@immutable
class Loss(AtLeader):
    """The log of the new `leader` lacks `records` records that were acknowledged with acks=all."""

    KIND = "loss"
    records: LostRecords


@immutable
class Acks1Loss(AtLeader):
    """The log of the new `leader` lacks `records` records that were acknowledged with acks=1."""

    KIND = "acks_1_loss"
    records: LostRecords


@immutable
class AcknowledgedLoss(AtLeader):
    """Records are lost, whatever acks is. `records`: 0 for those that followers had not fetched (acks=1)."""

    KIND = "acknowledged_loss"
    records: Value = 0


@immutable
class UncleanRecovery(AtLeader):
    """A `leader` is elected that may lack acknowledged records."""

    KIND = "unclean_recovery"


@immutable
class Recovery(AtLeader):
    """An unclean recovery was decided, `leader` elected. `answers`: of the replicas, and why it was elected."""

    KIND = "recovery"
    answers: Detail


@immutable
class HwRegression(AtLeader):
    """The high watermark that consumers see has decreased, at this `leader`."""

    KIND = "hw_regression"


@immutable
class Crash(Observation):
    """The process of a broker ends. `failure`: `clean`, `unclean`, `lossy` or `disk`; `cause`: in the words of the
    timeline, such as `broker` or `rack 0 power` (it is no part of the text by which builds are compared)."""

    KIND = "crash"
    broker: OfNode
    failure: Detail
    cause: str = field(default="", repr=False)


@immutable
class Start(Observation):
    """A broker is started."""

    KIND = "start"
    broker: OfNode


@immutable
class Impaired(Observation):
    """A broker is impaired from now on. `impairment`: its kind, as in records (`isolated`, `paused`); `cause`: in
    words, as `rack 0 switch`."""

    KIND = "impaired"
    broker: OfNode
    impairment: Detail
    cause: str = ""


@immutable
class Restored(Observation):
    """The impairment of the broker has ended."""

    KIND = "restored"
    broker: OfNode
    impairment: Detail
    cause: str = ""


@immutable
class Attributed(Observation):
    """What a loss, or a piece of an outage that ends with this row's interval, is attributed to (`reasons.py`).
    `metric`: the name of the one that counts it; `causes`: failures, in words; `events`: losses, or outages that begin
    with it; `amount`: records lost, or ms of the outage, with the weight of the row that ends the interval."""

    KIND = "attributed"
    partition: int
    metric: Detail
    reason: Annotated[str, In("why")]
    causes: Annotated[str, In("cause")]
    events: Annotated[int, In("epoch")]
    amount: Value


@immutable
class End(Observation):
    """The trial ends."""

    KIND = "end"
    ENDS_TRIAL = True


@immutable
class Produced(Observation):
    """A write has ended. `outcome`: `acked`, `unknown` (its leader has gone) or the error; `took_ms`: since it was
    sent; `offset`: that of the record, -1 if unknown."""

    KIND = "produced"
    partition: int
    outcome: Detail
    took_ms: Value = 0
    offset: int = -1


@immutable
class Elected(AtLeader):
    """The replica `leader` has become leader with the log end offset `log_end`, in the leader epoch `epoch`; from the
    offset `missing_from` on its log does not have the records of the leader before it."""

    KIND = "elected"
    log_end: Value
    epoch: int
    missing_from: Annotated[int, In("offset")]


@immutable
class Checkpoint(Observation):
    """Of the records acknowledged so far only the last one, at `offset`, is followed on."""

    KIND = "checkpoint"
    partition: int
    offset: int


@immutable
class Read(AtLeader):
    """With `outcome` `fetched` the consumer has read `records` records from `offset` on from `leader`, the last one of
    leader epoch `epoch`. With `diverged` (KIP-320) or `out_of_range` that leader's log lacks the last `records` that
    the consumer has read, which goes on at `offset`."""

    KIND = "read"
    records: Value
    outcome: Detail
    epoch: int
    offset: int


@immutable
class Failover(Observation):
    """Real ms from the crash of the leader `crashed` to the first acknowledgement of a write that was sent after it."""

    KIND = "failover"
    partition: int
    crashed: OfNode
    took_ms: Value


@immutable
class Acknowledged(Observation):
    """Real ms from the sending of a write to its acknowledgement."""

    KIND = "acknowledged"
    partition: int
    took_ms: Value


@immutable
class Restarted(Observation):
    """Real ms from the start of a broker's process until the controller has unfenced it."""

    KIND = "restarted"
    broker: OfNode
    took_ms: Value


@immutable
class Throughput(Observation):
    """Acknowledged records per second, in real time."""

    KIND = "throughput"
    records_per_s: Value


MEASURED: Final = (Failover, Acknowledged, Restarted, Throughput)
"""Kinds whose rows carry a measurement."""
FOLLOWED: Final = (Produced, Elected, Checkpoint)
"""Kinds whose rows follow the single records, by which losses are computed from the trace."""
ACKED: Final = "acked"
UNKNOWN: Final = "unknown"
FETCHED: Final = "fetched"
DIVERGED: Final = "diverged"
OUT_OF_RANGE: Final = "out_of_range"


for _name, _value in TraceRow._field_defaults.items():
    setattr(Observation, f"UNUSED_{_name}", _value)


class Layout(NamedTuple):
    """How a kind stands in a file: the column of each field, and the getter of a row's values."""

    columns: dict[str, In]
    values: Callable[[Stamped], tuple[object, ...]]


def _layout(kind: type[Observation]) -> Layout:
    columns: dict[str, In] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name.islower():
            declared = getattr(hint, "__metadata__", ())
            columns[name] = next((item for item in declared if isinstance(item, In)), In(name))
    filled = {each.column: f"what.{name}" for name, each in columns.items()}
    filled |= {"time_ms": "time_ms", "kind": "what.KIND", "log_weight": "log_weight"}
    return Layout(columns, attrgetter(*(filled.get(name, f"what.UNUSED_{name}") for name in TraceRow._fields)))


KINDS: Final[dict[str, type[Observation]]] = {
    kind.KIND: kind
    for kind in (
        *(State, End, Loss, Acks1Loss, AcknowledgedLoss, UncleanRecovery, Recovery, HwRegression, Crash, Start),
        *(Attributed, Impaired, Restored, Read, *FOLLOWED, *MEASURED),
    )
}
"""The kinds by their names in files."""
LAYOUTS: Final = {kind: _layout(kind) for kind in KINDS.values()}


class Stamped(NamedTuple):
    """An observation of a trial.

    `time_ms`: virtual time since the trial began. `log_weight`: the natural logarithm of the likelihood ratio of the
    failures so far, 0 in plain sampling. It weights an event, and the interval that a `State` or `End` ends.
    """

    time_ms: int
    what: Observation
    log_weight: float = 0.0

    def row(self) -> TraceRow:
        """The row of a file."""
        return TraceRow._make(LAYOUTS[type(self.what)].values(self))


CONTROLLED: Final = (
    "losses",
    "lost_records",
    "acknowledged_losses",
    "offline",
    "refuses",
    "unwritable",
    "unclean_recoveries",
    "stalled",
    "incidents",
    "some_unwritable",
)
"""The columns of the metrics that have a control. Those of lost records are losses; the last two are of clusters."""


class ControlResult(NamedTuple):
    """The controls of a trial (`trials/multifidelity.py`). `exposure`, `values`: of the one with the trial's failures,
    by `CONTROLLED`; `exposure_mean`, `means`: of `runs` others."""

    runs: int
    exposure: float
    exposure_mean: float
    values: tuple[float, ...]
    means: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a trial returns: its trace in time order, and hash and number of events of the engine's full event trace.

    `custom`: the values of a script's metrics, in their order (`scripting/functions.py`). `unseen`: failures without
    rows, those before the trial and those of brokers that were down, each with the number of rows before it.
    `controls`: of a trial in multi-fidelity estimation.
    """

    rows: list[Stamped]
    trace_hash: str
    events: int
    custom: tuple[float, ...] = ()
    unseen: list[tuple[int, Observation]] = field(default_factory=list, repr=False)
    controls: ControlResult | None = field(default=None, repr=False)


class TraceError(AssertionError):
    """A trial produced a trace that breaks the rules: a defect of the trial, not of the user's input."""
