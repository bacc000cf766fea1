"""Carries out the faults of a timeline on a cluster, each at its time.

A node that has ended although no fault keeps it down, because its disk was full or because its controlled shutdown
outlived the fault, is started again by a supervisor that checks all nodes every `SUPERVISE_MS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from experiments.faults.controls import Controls
from experiments.faults.schema import Fault
from protocol.ids import TimeMs

SUPERVISE_MS = 500


class Injector:
    """`begun` counts the faults that have begun, by kind; `met` counts, by the kinds of an operation and of a fault,
    how often one of them has begun while the other one lasted.
    """

    def __init__(self, controls: Controls) -> None:
        self.begun: Counter[str] = Counter()
        self.met: Counter[tuple[str, str]] = Counter()
        self._lasting: dict[int, Fault] = {}
        self._controls = controls

    def schedule(self, faults: Sequence[Fault], from_ms: TimeMs = 0) -> None:
        """Schedules the beginning and the end of all of these faults, whose times count from `from_ms` on, and starts
        the supervisor.
        """
        for number, fault in enumerate(faults):
            self._controls.call_at(from_ms + fault.at_ms, partial(self._begin, number, fault))
            self._controls.call_at(from_ms + fault.end_ms, partial(self._heal, number, fault))
        self._supervise()

    def inject(self, fault: Fault) -> None:
        """Begins a fault at once and schedules its end. No supervisor runs."""
        number = self.begun.total()
        self._begin(number, fault)
        self._controls.call_at(self._controls.now_ms + fault.duration_ms, partial(self._heal, number, fault))

    def _begin(self, number: int, fault: Fault) -> None:
        self._controls.add_heading(f"fault {number} begins for {fault.duration_ms} ms: {fault.words()}")
        self.begun[fault.kind] += 1
        for other in self._lasting.values():
            if other.is_operation != fault.is_operation:
                operation, failure = (fault, other) if fault.is_operation else (other, fault)
                self.met[operation.kind, failure.kind] += 1
        self._lasting[number] = fault
        for node in fault.nodes if fault.keeps_down else ():
            self._controls.down.add(node, number)
        fault.begin(self._controls, number)

    def _heal(self, number: int, fault: Fault) -> None:
        self._controls.add_heading(f"fault {number} ends: {fault.kind}")
        del self._lasting[number]
        fault.heal(self._controls, number)

    def _supervise(self) -> None:
        for node in self._controls.engine.spec.node_ids:
            self._controls.start(node)
        self._controls.review()
        self._controls.call_at(self._controls.now_ms + SUPERVISE_MS, self._supervise)
