"""Which Ray node each node of a cluster runs on: pure decisions on the live Ray nodes.

A Ray node stands for a machine. At the start of a cluster every Ray node with CPUs becomes a *place*, and brokers,
controllers and the store get a place each, spread by kind. They stay together on their place, as on a machine with its
disks. When the Ray node of a place is lost, its nodes wait until another Ray node is free, that is, at no place; it
takes over the place with all its nodes. One on the same host is preferred, since it finds the directories of its
predecessor. So a further failure never takes more of the cluster than one machine held at the start: if Ray moved the
nodes to the remaining Ray nodes, several replicas of a partition would be lost with the next one.

Racks follow Ray nodes. Where Ray nodes have a label `rack`, a broker with a rack of its own is placed only on Ray nodes
of that rack, and a place is taken over only by a Ray node with its label. Where no Ray node has the label, the racks
are dealt to the places in turn, so that a place has brokers of two racks only where there are more racks than Ray
nodes.

Clients and the recovery manager have no disk: each start takes the live Ray node that has the fewest nodes, but not the
one of the last start if there are others: it may be lost without Ray having noticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protocol.ids import NodeId, is_broker, is_client, is_controller, is_recovery_manager, node_name


class PlacementError(RuntimeError):
    """The Ray cluster has no room for the nodes."""


class NoRayNodeError(RuntimeError):
    """A node cannot start now, since no Ray node may take it; it may start when one joins."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A live Ray node: its id, the name of its host, and its rack by its label."""

    ray_node: str
    host: str
    rack: str | None = None


@dataclass(eq=False, slots=True)
class _Place:
    """A place and the Ray node that is, or was last, at it."""

    machine: Machine


def is_movable(node: NodeId) -> bool:
    """Whether a node has no disk, so that it may start on any Ray node."""
    return is_client(node) or is_recovery_manager(node)


def unknown_racks(racks: Mapping[NodeId, str], machines: Sequence[Machine]) -> list[str]:
    """The racks of brokers that no Ray node has, in the order of the brokers; none where no Ray node has a label."""
    known = {machine.rack for machine in machines} - {None}
    return [rack for rack in dict.fromkeys(racks.values()) if known and rack not in known]


class Placement:
    """The places of the `nodes` of a cluster on these Ray nodes. `racks` are the racks of brokers, where the user gives
    them; `homes` gives the Ray node (by its id) of nodes whose place is not chosen here. PlacementError where no Ray
    node has a CPU, or none has a broker's rack.
    """

    def __init__(
        self,
        nodes: Sequence[NodeId],
        machines: Sequence[Machine],
        racks: Mapping[NodeId, str] | None = None,
        homes: Mapping[NodeId, str] | None = None,
    ) -> None:
        if not machines:
            raise PlacementError("no Ray node has a CPU")
        racks = racks or {}
        if missing := unknown_racks(racks, machines):
            raise PlacementError(f"no Ray node has the label rack={missing[0]}")
        self._places = [_Place(machine) for machine in _alternating(machines)]
        self._place_of: dict[NodeId, _Place] = {}
        self._movable: dict[NodeId, str] = {}
        for node, home in (homes or {}).items():
            self.fix(node, home)
        dealt = _deal_racks(racks, self._places)
        for node in nodes:
            if not is_movable(node) and node not in self._place_of:
                like = [at for other, at in self._place_of.items() if _kind(other) == _kind(node)]
                self._place_of[node] = min(dealt[racks[node]] if node in racks else self._places, key=like.count)

    def fix(self, node: NodeId, home: str) -> None:
        """Puts a node on the place of the Ray node with this id, a new place if there is none."""
        if all(place.machine.ray_node != home for place in self._places):
            self._places.append(_Place(Machine(home, "")))
        self._place_of[node] = next(place for place in self._places if place.machine.ray_node == home)

    def home(self, node: NodeId, machines: Sequence[Machine]) -> str:
        """The Ray node (its id) for a node that starts now, of the live ones. A free one takes over the place of a lost
        one. NoRayNodeError, with what the node waits for, where there is none.
        """
        place = self._place_of.get(node)
        if place is None:
            return self._movable_home(node, machines)
        if place.machine.ray_node not in {machine.ray_node for machine in machines}:
            place.machine = self._successor(place, machines)
        return place.machine.ray_node

    def _successor(self, place: _Place, machines: Sequence[Machine]) -> Machine:
        lost, taken = place.machine, {other.machine.ray_node for other in self._place_of.values()}
        free = [machine for machine in machines if machine.ray_node not in taken]
        fitting = [machine for machine in free if lost.rack is None or machine.rack == lost.rack]
        if not fitting:
            of_rack = "" if lost.rack is None else f" of rack {lost.rack}"
            raise NoRayNodeError(f"its Ray node {lost.ray_node[:8]} is lost, and no other one{of_rack} is free")
        return min(fitting, key=lambda machine: machine.host != lost.host)

    def _movable_home(self, node: NodeId, machines: Sequence[Machine]) -> str:
        """The Ray node with the fewest nodes, the last of several; that of the last start only if there is no other."""
        if not machines:
            raise NoRayNodeError("no Ray node is alive")
        used = [place.machine.ray_node for place in self._place_of.values()]
        used += [home for other, home in self._movable.items() if other != node]
        last = self._movable.get(node)
        homes = [machine.ray_node for machine in reversed(machines)]
        self._movable[node] = min(homes, key=lambda home: (home == last, used.count(home)))
        return self._movable[node]


def _kind(node: NodeId) -> str:
    """The kind of a node, by which nodes are spread."""
    return "broker" if is_broker(node) else "controller" if is_controller(node) else node_name(node)


def _alternating(machines: Sequence[Machine]) -> list[Machine]:
    """The Ray nodes so that racks alternate, in their order otherwise."""
    racks = [machine.rack for machine in machines]
    turns = {machine.ray_node: racks[:index].count(machine.rack) for index, machine in enumerate(machines)}
    return sorted(machines, key=lambda machine: turns[machine.ray_node])


def _deal_racks(racks: Mapping[NodeId, str], places: Sequence[_Place]) -> dict[str, list[_Place]]:
    """The places of each rack: those with its label, else dealt in turn."""
    names = list(dict.fromkeys(racks.values()))
    if any(place.machine.rack is not None for place in places):
        return {name: [place for place in places if place.machine.rack == name] for name in names}
    dealt = {name: list(places[index :: len(names)]) for index, name in enumerate(names)}
    return {name: found or [places[index % len(places)]] for index, (name, found) in enumerate(dealt.items())}
