"""The rows of a quorum trace, as `quorum.py` replays them: the disk of the replica, events, and what was recorded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from experiments.support.fields import StrictModel

Key = Annotated[tuple[int, int], Field(min_length=2)]
Keys = tuple[Key, ...]


class Batch(StrictModel):
    """Records of one epoch: data, or the one control record with its leader or voters."""

    epoch: int
    count: Annotated[int, Field(ge=1)]
    leader_change: int | None = None
    voters: Keys | None = None


class Advance(StrictModel):
    type: Literal["advance"]
    ms: Annotated[int, Field(ge=1)]


class Restart(StrictModel):
    type: Literal["restart"]


class Append(StrictModel):
    type: Literal["append"]
    count: Annotated[int, Field(ge=1)]


class Vote(StrictModel):
    type: Literal["vote"]
    candidate: Key
    epoch: int
    voter: Key
    pre_vote: bool
    last_epoch: int
    last_offset: int


class BeginEpoch(StrictModel):
    type: Literal["begin_epoch"]
    leader: int
    epoch: int
    voter: Key


class EndEpoch(StrictModel):
    type: Literal["end_epoch"]
    leader: int
    epoch: int
    successors: Keys


class Fetch(StrictModel):
    type: Literal["fetch"]
    replica: Key
    epoch: int
    offset: int
    last_epoch: int


class ChangeVoter(StrictModel):
    type: Literal["add_voter", "remove_voter"]
    voter: Key


class VoteAnswer(StrictModel):
    """The response to the vote request of `asked` epoch."""

    type: Literal["vote_response"]
    sender: int
    asked: int
    pre_vote: bool
    granted: bool
    epoch: int
    leader: int
    error: str


class FetchAnswer(StrictModel):
    """The response to the newest fetch."""

    type: Literal["fetch_response"]
    sender: int
    epoch: int
    leader: int
    kind: Literal["records", "diverging", "error"]
    error: str = "NONE"
    batches: tuple[Batch, ...] = ()
    high_watermark: int = 0
    diverging_epoch: int = -1
    diverging_end: int = -1


class VoterAnswer(StrictModel):
    """The response to the newest request by which the node makes itself a voter."""

    type: Literal["voter_response"]
    sender: int
    kind: Literal["add_voter", "remove_voter"]
    error: str


Answered = VoteAnswer | FetchAnswer | VoterAnswer
"""A response to a request of the node's own."""
Event = Annotated[
    Advance | Restart | Append | Vote | BeginEpoch | EndEpoch | Fetch | ChangeVoter | Answered,
    Field(discriminator="type"),
]


class State(StrictModel):
    role: str
    epoch: int
    leader: int
    voted: Key | None
    high_watermark: int
    last_epoch: int
    end_offset: int
    voters: Keys


class Answer(StrictModel):
    """A response; `None` where its kind has no such field, or Kafka left it out with the error."""

    error: str
    epoch: int | None = None
    leader: int | None = None
    granted: bool | None = None
    high_watermark: int | None = None
    diverging: tuple[int, int] | None = None
    snapshot: tuple[int, int] | None = None
    end: int | None = None


class Step(StrictModel):
    event: Event
    answer: Answer | None
    completed: Answer | None
    votes: tuple[str, ...]
    joins: tuple[str, ...] = ()
    state: State


class Initial(StrictModel):
    """The disk and configuration of the node; the log begins at `start`, below which is a snapshot with the voters,
    each on its disk 1. `epoch` is that of the election state, -1: there is none. With `joins` the node makes itself a
    voter (`controller.quorum.auto.join.enable`)."""

    static: bool
    voters: tuple[int, ...]
    start: int
    start_epoch: int
    batches: tuple[tuple[int, int], ...]
    epoch: int
    leader: int
    voted: int
    disk: int = 1
    joins: bool = False
    state: State


class QuorumRow(StrictModel):
    quorum: Initial
    steps: tuple[Step, ...]
