"""Faults of a node's machine: its disk is slow or full or fails, its clock is wrong or has a wrong rate."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from experiments.engines.port import Loss
from experiments.faults.controls import Controls
from experiments.faults.schema import BrokerFault, Drawn, Fault, NodeFault
from experiments.support.fields import Milliseconds
from protocol.ids import NodeId, node_name

MAX_SKEW_MS = 366 * 24 * 3_600_000
"""How wrong a clock may be: a year."""
MAX_DRIFT = 500


class SlowDisk(BrokerFault):
    """Each time a broker has written to a log, it takes no input for `write_ms`."""

    WORDS = "each write to the disk of {node} takes {write_ms} ms"
    DRAWN: ClassVar[Drawn] = {"write_ms": (1, 10, 200)}
    kind: Literal["slow_disk"] = "slow_disk"
    write_ms: Milliseconds = Field(description="how long each write takes, in ms")

    def begin(self, controls: Controls, number: int) -> None:
        controls.slow_disk(self.node, number, self.write_ms)

    def heal(self, controls: Controls, number: int) -> None:
        controls.end_slow_disk(self.node, number)


class FullDisk(BrokerFault):
    """A broker's disk has no room left. The broker ends at its next write, and is started again at the end."""

    keeps_down = True
    WORDS = "the disk of {node} is full"
    kind: Literal["full_disk"] = "full_disk"

    def begin(self, controls: Controls, number: int) -> None:
        controls.full_disks.add(self.node, number)

    def heal(self, controls: Controls, number: int) -> None:
        controls.full_disks.drop(self.node, number)
        super().heal(controls, number)


def set_clock(controls: Controls, node: NodeId, skew_ms: int) -> None:
    """Restarts a node with a clock that is `skew_ms` ahead."""
    if controls.engine.is_running(node):
        controls.kill(node, Loss())
    controls.cluster.set_clock(node, skew_ms)
    controls.start(node)


class ClockSkew(NodeFault):
    """A node's clock is ahead of the others. Its process is restarted at the beginning and at the end, since time does
    not jump within an incarnation; its page cache survives.
    """

    DRAWN: ClassVar[Drawn] = {"skew_ms": (-1_500, -50, 50, 1_500, 20_000)}
    kind: Literal["clock_skew"] = "clock_skew"
    skew_ms: Annotated[int, Field(ge=-MAX_SKEW_MS, le=MAX_SKEW_MS)] = Field(
        description="how far the clock is ahead, in ms; negative: behind"
    )

    def begin(self, controls: Controls, number: int) -> None:
        set_clock(controls, self.node, self.skew_ms)

    def heal(self, controls: Controls, number: int) -> None:
        set_clock(controls, self.node, 0)

    def words(self) -> str:
        side = "ahead" if self.skew_ms >= 0 else "behind"
        return f"the clock of {node_name(self.node)} is {abs(self.skew_ms)} ms {side}"


class ClockDrift(NodeFault):
    """The clock of a running node jumps ahead and gains or loses time from then on; timers that are set fire when they
    would have fired. At the end the process is restarted with the right time; its page cache survives.
    """

    in_swarm: ClassVar[bool] = False

    DRAWN: ClassVar[Drawn] = {"jump_ms": (0, 0, 700, 3_000), "drift": (-300, -20, 20, 300)}
    kind: Literal["clock_drift"] = "clock_drift"
    jump_ms: Annotated[int, Field(ge=0, le=MAX_SKEW_MS)] = Field(default=0, description="how far it jumps, in ms")
    drift: Annotated[int, Field(ge=-MAX_DRIFT, le=MAX_DRIFT)] = Field(
        description="what the clock gains per second, in ms; negative: loses"
    )

    def begin(self, controls: Controls, number: int) -> None:
        controls.cluster.adjust_clock(self.node, self.jump_ms, self.drift)

    def heal(self, controls: Controls, number: int) -> None:
        set_clock(controls, self.node, 0)

    def words(self) -> str:
        jump = f"jumps by {self.jump_ms} ms and " if self.jump_ms else ""
        rate = "gains" if self.drift >= 0 else "loses"
        return f"the clock of {node_name(self.node)} {jump}{rate} {abs(self.drift)} ms per second"


class DiskError(BrokerFault):
    """The next write to a broker's disk fails, once. The broker ends, and is started again."""

    in_swarm: ClassVar[bool] = False

    WORDS = "the next write to the disk of {node} fails"
    kind: Literal["disk_error"] = "disk_error"

    def begin(self, controls: Controls, number: int) -> None:
        controls.cluster.disks[self.node].fail_next_write(True)

    def heal(self, controls: Controls, number: int) -> None:
        controls.cluster.disks[self.node].fail_next_write(False)
        controls.start(self.node)


KINDS: tuple[type[Fault], ...] = (SlowDisk, FullDisk, ClockSkew, ClockDrift, DiskError)
