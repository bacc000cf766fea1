"""Scenarios drawn from the swarm, within what every world can do.

The plan of a seed (`experiments/hunt/fuzz/swarm.py`) is a timeline: faults that begin and end, and operations of
clients. A scenario has its events in the same order, each as a step whose effects are waited for. What a real Kafka
cannot do by a step (slow disks, wrong clocks, lost messages, disks that lose a part) is left out, and so is what
follows the first `MOST_STEPS` events; of the configs only `KEPT` are kept. Between two other steps records are sent
once, and an election is requested once. Most controllers always run, since without one nothing changes. At the end
everything is healed and started, and each partition is written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, product

from experiments.faults.kinds.administration import Configure, Reassign
from experiments.faults.kinds.links import Cut
from experiments.faults.kinds.operations import ReassignmentStorm, ReplaceBroker
from experiments.faults.kinds.processes import Crash, Pause, PowerLoss, Restart
from experiments.faults.schema import Fault
from experiments.hunt.fuzz import swarm
from experiments.hunt.fuzz.plan import Elect, Plan, Send
from experiments.scenarios.loader import scenario_from
from experiments.scenarios.model import Scenario
from protocol.config import MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE
from protocol.features import Generation
from protocol.ids import is_broker, is_controller
from protocol.kafka_release import NEWEST

MOST_STEPS = 12
MOST_BROKERS = 5
MOST_CONTROLLERS = 3
MOST_RECORDS = 3
MOST_LINKS = 4
REQUESTS = ("produce", "elect")
"""Kinds of steps that are taken once between two others."""
KEPT = (MIN_INSYNC_REPLICAS, UNCLEAN_LEADER_ELECTION_ENABLE)
Raw = dict[str, object]
Event = tuple[int, str, dict[str, object]]
"""A time in ms, the kind of a step, and its fields."""


def drawn(seed: int) -> Scenario:
    """The scenario of a seed, of generation `kip-966-elr`, which a real Kafka runs. A plan with more brokers than
    `MOST_BROKERS`, and one that has no steps but `REQUESTS`, is replaced by the one of another seed.
    """
    for attempt in count():
        plan = swarm.draw(seed + 1_000_003 * attempt, Generation.KIP_966_ELR, release=NEWEST.value)
        steps = drawn_steps(plan) if plan.brokers <= MOST_BROKERS else []
        if any(kind not in REQUESTS for step in steps for kind in step):
            return scenario_from(_document(seed, plan, steps), f"seed {seed}")
    raise AssertionError("a seed has been found")


def _document(seed: int, plan: Plan, steps: list[Raw]) -> Raw:
    topics = [
        {
            "name": topic.name,
            "assignments": [[*replicas] for replicas in topic.assignments],
            "config": {name: value for name, value in topic.config.items() if name in KEPT},
        }
        for topic in plan.topics
    ]
    cluster = {"brokers": plan.brokers, "controllers": _controllers(plan), "generation": Generation.KIP_966_ELR.value}
    description = f"Drawn from the swarm with seed {seed}."
    return {"name": f"seed-{seed}", "description": description, "cluster": cluster, "topics": topics, "steps": steps}


def _controllers(plan: Plan) -> int:
    return min(plan.controllers, MOST_CONTROLLERS)


def drawn_steps(plan: Plan) -> list[Raw]:
    """The steps of a plan; empty if it has no event that becomes a step."""
    nodes = _Nodes(_controllers(plan))
    taken: list[Raw] = []
    requested: set[str] = set()
    for _, kind, fields in sorted(_events(plan), key=lambda event: event[0]):
        if len(taken) < MOST_STEPS and kind not in requested and nodes.take(kind, fields):
            taken.append({kind: fields})
            requested = requested | {kind} if kind in REQUESTS else set()
    restored: list[Raw] = [{"heal": "all"}] if nodes.cut else []
    restored += [{"resume": _node(node)} for node in sorted(nodes.paused)]
    restored += [{"start": _node(node)} for node in sorted(nodes.down, reverse=True)]
    for topic in plan.topics:
        places = (_place(topic.name, index) for index in range(len(topic.assignments)))
        restored += [{"produce": place | {"records": 1}} for place in places]
    return [*taken, *restored] if taken else []


class _Nodes:
    """The nodes that do not run or are paused, and the links that are cut, after the steps so far."""

    def __init__(self, controllers: int) -> None:
        self.controllers = controllers
        self.down: set[int] = set()
        self.paused: set[int] = set()
        self.cut: set[tuple[int, int]] = set()

    def take(self, kind: str, fields: dict[str, object]) -> bool:
        """Whether a step can be carried out; if so, it is."""
        if kind in ("cut", "heal"):
            pair = fields["between"]
            assert isinstance(pair, list)
            return self._take_link(kind, (pair[0], pair[1]))
        node = fields.get("broker", fields.get("controller"))
        if not isinstance(node, int):
            return True
        among, ends = (self.paused, "resume") if kind in ("pause", "resume") else (self.down, "start")
        if kind in (ends, "unregister"):
            is_possible = node in among
            among.difference_update({node} if kind == ends else ())
            return is_possible
        is_possible = node not in self.down | self.paused and (is_broker(node) or self._can_miss(node))
        if is_possible:
            among.add(node)
        return is_possible

    def _take_link(self, kind: str, link: tuple[int, int]) -> bool:
        if kind == "heal":
            is_possible = link in self.cut
            self.cut.discard(link)
            return is_possible
        is_possible = link not in self.cut and all(is_broker(node) or node < 1_000 + self.controllers for node in link)
        self.cut.update({link} if is_possible else ())
        return is_possible

    def _can_miss(self, controller: int) -> bool:
        absent = sum(map(is_controller, self.down | self.paused))
        return controller < 1_000 + self.controllers and 2 * (absent + 1) < self.controllers


def _events(plan: Plan) -> Iterator[Event]:
    for operation in plan.operations:
        place = _place(operation.topic, operation.partition)
        if isinstance(operation, Send):
            yield operation.at_ms, "produce", place | {"records": min(operation.records, MOST_RECORDS)}
        elif isinstance(operation, Elect):
            yield operation.at_ms, "elect", place | {"type": "unclean" if operation.unclean else "preferred"}
    for fault in plan.faults:
        yield from _events_of(fault)


def _events_of(fault: Fault) -> Iterator[Event]:
    """The steps that begin and heal a fault; none for a kind that has none."""
    begin_ms, end_ms = fault.at_ms, fault.end_ms
    match fault:
        case Crash() | PowerLoss() | ReplaceBroker():
            is_replaced = (isinstance(fault, Crash) and fault.loses == "all") or getattr(fault, "new_disk", False)
            for node in _servers(fault.nodes):
                yield begin_ms, "crash", _node(node) | ({"lose": "all"} if is_replaced and is_broker(node) else {})
                yield end_ms, "start", _node(node)
            if isinstance(fault, ReplaceBroker):
                yield begin_ms, "unregister", _node(fault.node)
        case Restart():
            yield begin_ms, "shutdown", _node(fault.node)
            yield end_ms, "start", _node(fault.node)
        case Pause() if is_broker(fault.node):
            yield begin_ms, "pause", _node(fault.node)
            yield end_ms, "resume", _node(fault.node)
        case Cut():
            links = [sorted(pair) for pair in product(_servers(fault.source), _servers(fault.target))]
            for link in links if len(links) <= MOST_LINKS else ():
                yield begin_ms, "cut", {"between": link}
                yield end_ms, "heal", {"between": link}
        case _:
            yield from _changes_of(fault)


def _changes_of(fault: Fault) -> Iterator[Event]:
    """The steps of a fault that is a change by an operator."""
    match fault:
        case Reassign():
            place = _place(fault.topic, fault.partition)
            yield fault.at_ms, "reassign", place | {"replicas": [*fault.replicas]}
            yield fault.end_ms, "reassign", place | {"cancel": True}
        case ReassignmentStorm():
            place = _place(fault.topic, fault.partition)
            for turn, replicas in enumerate(fault.targets):
                wanted: Raw = {"replicas": [*replicas]} if replicas else {"cancel": True}
                yield fault.at_ms + turn * fault.every_ms, "reassign", place | wanted
        case Configure(config={**changed}):
            config = {name: value for name, value in changed.items() if name in KEPT}
            if config:
                yield fault.at_ms, "configure", {"topic": fault.topic, "config": config}
                yield fault.end_ms, "configure", {"topic": fault.topic, "delete": [*config]}


def _place(topic: str, partition: int) -> dict[str, object]:
    return {"topic": topic, "partition": partition}


def _node(node: int) -> dict[str, object]:
    return {"broker" if is_broker(node) else "controller": node}


def _servers(nodes: Iterable[int]) -> list[int]:
    return [node for node in nodes if is_broker(node) or is_controller(node)]
