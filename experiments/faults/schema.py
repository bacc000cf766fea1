"""Faults as values: what may go wrong, to whom, when and for how long.

A fault begins at `at_ms` and is healed `duration_ms` later; both halves belong to it, so that a run in which all faults
are over is a run in which all is whole again. A *timeline* is a sequence of faults with their times. It can be written
out, which is what replay files do, drawn from *rates* (`draw.py`), or left to a search that tries all there are within
*bounds* (`experiments/hunt/explore`).

A fault says what is asked for. What a cluster that must stay within tolerance grants of it is the atlas's decision
(`atlas.py`); how it is done to a simulated cluster is in `inject.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from experiments.engines.port import Loss
from experiments.support.fields import TopicConfig
from protocol.ids import NodeId


class Value(BaseModel):
    """Frozen, strict, nothing unknown."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _listed(value: object) -> object:
    """A list, as files write it, is taken for a tuple."""
    return tuple(value) if isinstance(value, list) else value


Index = Annotated[int, Field(ge=0)]
Nodes = Annotated[tuple[Index, ...], BeforeValidator(_listed), Field(min_length=1)]
PerMille = Annotated[int, Field(ge=1, le=1_000)]
Milliseconds = Annotated[int, Field(ge=1)]

MessageKind = Literal["registrations", "heartbeats", "proposals", "metadata", "fetches", "produce", "recoveries"]
"""Requests of brokers to the controller (a proposal: AlterPartition), to each other, and of clients; with answers; and
what the recovery manager is told, asks and tells.
"""

MAX_SKEW_MS = 60_000


class _Fault(Value):
    at_ms: Index
    duration_ms: Milliseconds

    @property
    def end_ms(self) -> int:
        """When it is healed."""
        return self.at_ms + self.duration_ms

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """Whom it strikes, as far as it strikes single nodes."""
        return ()


class Crash(_Fault):
    """A node's process ends at once and is started again at the end. `loses` is what its disk loses: `nothing` (the
    page cache survives), a `suffix` of each log's unflushed part, drawn by `seed`, the `torn` last batch of it, a
    `corrupt` batch in it, drawn by `seed`, with all behind it, the last `count` of its `records`, everything
    `unflushed`, or `all` (the disk is replaced).
    """

    kind: Literal["crash"] = "crash"
    node: Index
    loses: Literal["nothing", "suffix", "torn", "corrupt", "records", "unflushed", "all"] = "nothing"
    seed: Index = 0
    count: Index = 0

    @model_validator(mode="after")
    def _counts_records(self) -> Self:
        if self.count and self.loses != "records":
            raise ValueError("allowed: count with loses: records, and only there")
        return self

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)

    @property
    def loss(self) -> Loss:
        """The same in the words of the engines."""
        return loss_of(self.loses, self.count if self.loses == "records" else self.seed)


class PowerLoss(_Fault):
    """A rack, or all there is, loses power: the nodes end at once and lose what they had not flushed, and so do those
    that had ended before.
    """

    kind: Literal["power_loss"] = "power_loss"
    rack: Nodes

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return self.rack


class Pause(_Fault):
    """A node takes no input; what arrives waits."""

    kind: Literal["pause"] = "pause"
    node: Index

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


class Restart(_Fault):
    """A broker is told to shut down in good order; at the end it is started again, once it has ended."""

    kind: Literal["restart"] = "restart"
    node: Index

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


class Cut(_Fault):
    """Nothing passes from `source` to `target`, and nothing back unless it is `one_way`."""

    kind: Literal["cut"] = "cut"
    source: Nodes
    target: Nodes
    one_way: bool = False


class Disturb(_Fault):
    """`per_mille` of what passes from `source` to `target` is lost, arrives twice, is overtaken by what comes later, or
    is delayed by `delay_ms` with all behind it; a slow link is a delay of everything. `only` names the one kind of
    message that suffers it, requests and answers; None: all that passes.
    """

    kind: Literal["disturb"] = "disturb"
    source: Nodes
    target: Nodes
    effect: Literal["lose", "duplicate", "reorder", "delay"]
    per_mille: PerMille = 1_000
    delay_ms: Index = 0
    only: MessageKind | None = None


class HeartbeatLoss(_Fault):
    """No heartbeat of a broker reaches the controller; all else does."""

    kind: Literal["heartbeat_loss"] = "heartbeat_loss"
    node: Index

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


class SlowDisk(_Fault):
    """Whenever a broker has written to a log it takes no input for `write_ms`."""

    kind: Literal["slow_disk"] = "slow_disk"
    node: Index
    write_ms: Milliseconds

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


class FullDisk(_Fault):
    """A broker's disk takes nothing more; the broker ends when it finds out, and starts again at the end."""

    kind: Literal["full_disk"] = "full_disk"
    node: Index

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


class ClockSkew(_Fault):
    """A node's clock is `skew_ms` ahead of the others. Its process is restarted for it, at both ends, since time does
    not jump within a life; its page cache survives.
    """

    kind: Literal["clock_skew"] = "clock_skew"
    node: Index
    skew_ms: Annotated[int, Field(ge=-MAX_SKEW_MS, le=MAX_SKEW_MS)]

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


class Reassign(_Fault):
    """A partition is to move to `replicas`; what is not done by the end is cancelled."""

    kind: Literal["reassign"] = "reassign"
    topic: str
    partition: Index
    replicas: Nodes


class Configure(_Fault):
    """A topic's configs are changed; at the end they are again what they were."""

    kind: Literal["configure"] = "configure"
    topic: str
    config: TopicConfig


class VoterChange(_Fault):
    """A controller is to have no vote; from the end on it is to have one again."""

    kind: Literal["voter_change"] = "voter_change"
    node: Index

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return (self.node,)


Fault = Annotated[
    Crash
    | PowerLoss
    | Pause
    | Restart
    | Cut
    | Disturb
    | HeartbeatLoss
    | SlowDisk
    | FullDisk
    | ClockSkew
    | Reassign
    | Configure
    | VoterChange,
    Field(discriminator="kind"),
]

FAULT_KINDS: dict[str, type[_Fault]] = {
    model.model_fields["kind"].default: model
    for model in (
        Crash,
        PowerLoss,
        Pause,
        Restart,
        Cut,
        Disturb,
        HeartbeatLoss,
        SlowDisk,
        FullDisk,
        ClockSkew,
        Reassign,
        Configure,
        VoterChange,
    )
}

_LOSSES: dict[str, Literal["none", "suffix", "torn", "corrupt", "records", "unflushed", "all"]] = {
    "nothing": "none",
    "suffix": "suffix",
    "torn": "torn",
    "corrupt": "corrupt",
    "records": "records",
    "unflushed": "unflushed",
    "all": "all",
}


def loss_of(loses: str, count: int = 0) -> Loss:
    """What a disk loses, in the words of the engines; `count` is a suffix's seed, or a number of records."""
    return Loss(_LOSSES[loses], count)


def _known_kinds(value: dict[str, int]) -> dict[str, int]:
    for kind in value:
        if kind not in FAULT_KINDS:
            raise ValueError(f"allowed: one of {', '.join(FAULT_KINDS)}")
    return value


KindCounts = Annotated[dict[str, Index], AfterValidator(_known_kinds)]


class Rates(Value):
    """Faults as a random process: one begins every `mean_between_ms` on average (exponentially distributed), of a kind
    drawn by `weights`, and lasts one of `durations_ms`.
    """

    mean_between_ms: Milliseconds
    durations_ms: Annotated[tuple[Milliseconds, ...], BeforeValidator(_listed), Field(min_length=1)]
    weights: KindCounts = Field(min_length=1)


class Bounds(Value):
    """What may happen in one run of an exhaustive search, each at any time and at most so often: records produced;
    crashes that lose some or all of what is not flushed, crashes that lose nothing, restarts in good order; heartbeats
    lost until the session of a broker that lives is over (`fences`); followers that are found late or silent
    (`shrinks`); proposals that are made again (`retries`). `delays`: how often a link is held up, for any length of
    time, while everything else goes on at once; -1: all links are as slow as they like, in every combination. A fault
    is healed at any time: a broker that is gone may start again, a link that was held up moves.
    """

    records: Index = 1
    lossy: Index = 1
    crashes: Index = 0
    shutdowns: Index = 0
    fences: Index = 1
    shrinks: Index = 0
    retries: Index = 0
    delays: Annotated[int, Field(ge=-1)] = 0
