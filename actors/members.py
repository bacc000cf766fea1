"""What a cluster of actors keeps of each of its nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import ray
from ray.exceptions import ActorUnschedulableError, RayActorError

from actors.frames import joined_frame
from actors.kept_disks import KeptDisks
from actors.nodes import NodeSnapshot, PollReport
from actors.peers import Handle
from actors.processes import ProcessId, runs_here
from actors.storage import DiskLossKind
from protocol.config import ConfigError
from protocol.errors import StorageError
from protocol.ids import DRIVER, NO_EPOCH, NodeId

ACTOR_GONE = (RayActorError, ActorUnschedulableError)
"""The errors of a call to an actor that has ended, or whose Ray node is lost."""
NEWS_WITHIN_S = 60.0
"""How long a node waits for something to report before it is polled again."""
_RETRY_S = 0.02
_STORAGE_ERRORS = {StorageError.__name__, *(kind.__name__ for kind in StorageError.__subclasses__())}


@dataclass(slots=True)
class MessageQueue:
    """The experiment's encoded messages to a node on one channel: the `queued` ones, and the call `under_way`. Ray may
    let calls of an async actor overtake each other, so there is one call at a time."""

    queued: list[bytes] = field(default_factory=list)
    under_way: Handle = None

    def send_queued(self, actor: Handle, control: bool) -> None:
        """Sends the queued messages in one frame, unless a call is under way."""
        if self.queued and (self.under_way is None or ray.wait([self.under_way], timeout=0)[0]):
            self.under_way = actor.deliver.remote(DRIVER, control, joined_frame(self.queued))
            self.queued = []


@dataclass(slots=True)
class Member:
    """One node. `actor` is its present actor, None while it does not run, `incarnation` counts its starts.

    `process` is the process of the present incarnation, or of the last one that is known, with the call `asked` for it
    under way. `poll` and `snapshot` are calls under way, `news` is one that ends when a poll has something to report;
    `answered`: the present incarnation has answered a poll; `version` is that of its last snapshot (-1: none),
    `active_epoch` that of an active controller. `loss_kind` and `loss_count` are applied to the disk before the next
    start; `disk` counts the disks before; `skew_ms` is how far its clock is ahead from the next start on; `queues` are
    those of the data and the control channel.
    """

    actor: Handle = None
    incarnation: int = 0
    process: ProcessId | None = None
    asked: ray.ObjectRef[ProcessId] | None = None
    poll: ray.ObjectRef[PollReport] | None = None
    news: ray.ObjectRef[None] | None = None
    answered: bool = False
    snapshot: ray.ObjectRef[tuple[int, NodeSnapshot | None]] | None = None
    version: int = -1
    active_epoch: int = NO_EPOCH
    loss_kind: DiskLossKind = "none"
    loss_count: int = 0
    disk: int = 0
    skew_ms: int = 0
    queues: tuple[MessageQueue, MessageQueue] = field(default_factory=lambda: (MessageQueue(), MessageQueue()))

    def may_have_news(self) -> bool:
        """Whether the node may have something to report that `ask` has not asked for."""
        return self.news is None or bool(ray.wait([self.news], timeout=0)[0])

    def ask(self, with_news: bool) -> None:
        """Polls the node unless a poll is under way; `with_news`: and has it say when it has news."""
        if self.poll is None:
            self.poll = self.actor.poll.remote()
            if with_news and self.may_have_news():
                self.news = self.actor.await_news.remote(NEWS_WITHIN_S)


def poll_members(members: Sequence[Member], only_news: bool) -> None:
    """Sends what is queued for nodes that run, and polls them; with `only_news` all or, where none has news, none."""
    for member in members:
        for control in (False, True):
            member.queues[control].send_queued(member.actor, control)
    if not only_news or any(member.may_have_news() for member in members):
        for member in members:
            member.ask(with_news=only_news)


def take_snapshots(members: Mapping[NodeId, Member]) -> list[tuple[NodeId, NodeSnapshot]]:
    """The snapshots that have arrived and changed."""
    found: list[tuple[NodeId, NodeSnapshot]] = []
    for node, member in members.items():
        call = member.snapshot
        if call is None or not ray.wait([call], timeout=0)[0]:
            continue
        member.snapshot = None
        with suppress(*ACTOR_GONE):  # the next poll reports the failure
            member.version, snapshot = ray.get(call)
            if snapshot is not None:
                found.append((node, snapshot))
    return found


def creation_failure(text: str) -> str:
    """Why an actor could not be created, from Ray's error text: only the last line where that is a StorageError, or a
    ConfigError, whose text names the config.
    """
    last = text.strip().splitlines()[-1]
    kind = last.partition(":")[0].rpartition(".")[2]
    if kind == ConfigError.__name__:
        return last.partition(": ")[2]
    return last.removeprefix(f"{StorageError.__module__}.") if kind in _STORAGE_ERRORS else text


def disks_of(run: str, folder: Path, members: Mapping[NodeId, Member]) -> KeptDisks:
    """The disks of the nodes of a cluster as they are now."""
    losses = {node: (it.loss_kind, it.loss_count) for node, it in members.items() if it.loss_kind != "none"}
    incarnations = {node: it.incarnation for node, it in members.items()}
    return KeptDisks(run, folder, incarnations, {node: it.disk for node, it in members.items()}, losses)


def resume(members: Mapping[NodeId, Member], kept: KeptDisks) -> None:
    """Sets up nodes that have not started yet on disks that they had before."""
    for node, member in members.items():
        member.incarnation, member.disk = kept.incarnations.get(node, 0), kept.disks.get(node, 0)
        member.loss_kind, member.loss_count = kept.losses.get(node, ("none", 0))


def create_when_name_is_free(create: Callable[[], Handle], within_s: float) -> Handle:
    """Creates a named actor once the name is free: Ray frees it when it has noticed the death of the old process."""
    deadline_s = time.monotonic() + within_s
    while True:
        try:
            return create()
        except ValueError:
            if time.monotonic() >= deadline_s:
                raise
        time.sleep(_RETRY_S)


def await_gone(name: str, run: str, process: ProcessId | None, within_s: float) -> None:
    """Waits until Ray knows that an actor has ended, and its process on this machine writes no more, at most this long:
    Ray forgets an actor that it kills before the process has ended."""
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s and (_is_known(name, run) or (process is not None and runs_here(process))):
        time.sleep(_RETRY_S)


def _is_known(name: str, run: str) -> bool:
    try:
        ray.get_actor(name, run)
    except ValueError:
        return False
    return True
