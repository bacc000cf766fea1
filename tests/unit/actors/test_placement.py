"""Which Ray node each node of a cluster runs on, and which one takes over the place of a lost one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from actors.placement import Machine, NoRayNodeError, Placement, PlacementError, unknown_racks
from protocol.ids import FIRST_CLIENT, FIRST_CONTROLLER, RECOVERY_MANAGER, STORE, NodeId

A, B, C = Machine("a", "host-a"), Machine("b", "host-b"), Machine("c", "host-c")
BROKERS = (0, 1, 2)
CONTROLLERS = (FIRST_CONTROLLER, FIRST_CONTROLLER + 1, FIRST_CONTROLLER + 2)


def homes(placement: Placement, nodes: Sequence[NodeId], machines: Sequence[Machine]) -> dict[NodeId, str]:
    return {node: placement.home(node, machines) for node in nodes}


def test_each_kind_is_spread_over_the_ray_nodes() -> None:
    nodes = (*range(5), *CONTROLLERS, STORE)
    found = homes(Placement(nodes, [A, B, C]), nodes, [A, B, C])
    assert sorted(Counter(found[node] for node in range(5)).values()) == [1, 2, 2]
    assert {found[node] for node in CONTROLLERS} == {"a", "b", "c"}


def test_a_node_of_a_lost_ray_node_waits_although_others_are_alive() -> None:
    placement = Placement((*BROKERS, *CONTROLLERS), [A, B, C])
    for node in (1, FIRST_CONTROLLER + 1):
        with pytest.raises(NoRayNodeError, match="its Ray node b is lost, and no other one is free"):
            placement.home(node, [A, C])
    assert homes(placement, (0, 2), [A, C]) == {0: "a", 2: "c"}


def test_a_free_ray_node_takes_over_the_place_with_all_its_nodes() -> None:
    placement = Placement((*BROKERS, *CONTROLLERS), [A, B, C])
    new = Machine("d", "host-d")
    assert homes(placement, (1, FIRST_CONTROLLER + 1), [A, C, new]) == {1: "d", FIRST_CONTROLLER + 1: "d"}
    with pytest.raises(NoRayNodeError):
        placement.home(2, [A, new])


def test_a_ray_node_of_the_same_host_is_preferred() -> None:
    placement = Placement(BROKERS, [A, B, C])
    assert placement.home(1, [A, C, Machine("d", "host-d"), Machine("e", "host-b")]) == "e"


def test_the_same_ray_node_is_kept_while_it_is_alive() -> None:
    placement = Placement(BROKERS, [A, B, C])
    assert homes(placement, BROKERS, [C, B, A, Machine("d", "host-d")]) == {0: "a", 1: "b", 2: "c"}


def test_brokers_follow_the_racks_of_the_ray_nodes() -> None:
    machines = [Machine("a1", "h", "a"), Machine("b1", "h", "b"), Machine("a2", "h", "a")]
    placement = Placement(range(5), machines, {0: "a", 1: "b", 2: "a", 3: "b", 4: "a"})
    found = homes(placement, range(5), machines)
    assert {found[0], found[2], found[4]} == {"a1", "a2"}
    assert (found[1], found[3]) == ("b1", "b1")
    spare = Machine("b2", "h", "b")
    with pytest.raises(NoRayNodeError, match="its Ray node a1 is lost, and no other one of rack a is free"):
        placement.home(0, [*machines[1:], spare])
    assert placement.home(0, [*machines[1:], spare, Machine("a3", "h", "a")]) == "a3"


def test_without_labels_racks_are_dealt_to_ray_nodes_and_share_none_while_there_are_enough() -> None:
    racks = {0: "a", 1: "b", 2: "c", 3: "a", 4: "b"}
    found = homes(Placement(range(5), [A, B, C], racks), range(5), [A, B, C])
    assert found == {0: "a", 1: "b", 2: "c", 3: "a", 4: "b"}
    found = homes(Placement(range(5), [A, B], racks), range(5), [A, B])
    assert found == {0: "a", 1: "b", 2: "a", 3: "a", 4: "b"}


def test_brokers_without_racks_of_their_own_alternate_between_the_racks_of_the_ray_nodes() -> None:
    machines = [Machine("a1", "h", "a"), Machine("a2", "h", "a"), Machine("b1", "h", "b")]
    assert homes(Placement((0, 1), machines), (0, 1), machines) == {0: "a1", 1: "b1"}


def test_a_rack_that_no_ray_node_has_is_refused() -> None:
    machines = [Machine("a1", "h", "a"), Machine("x", "h")]
    assert unknown_racks({0: "a", 1: "d", 2: "c", 3: "d"}, machines) == ["d", "c"]
    assert unknown_racks({0: "a"}, [A, B]) == []
    with pytest.raises(PlacementError, match="no Ray node has the label rack=d"):
        Placement((0, 1), machines, {0: "a", 1: "d"})
    with pytest.raises(PlacementError, match="no Ray node has a CPU"):
        Placement((0,), [])


def test_a_client_and_the_recovery_manager_start_on_any_ray_node_but_the_last() -> None:
    nodes = (0, 1, RECOVERY_MANAGER, FIRST_CLIENT)
    placement = Placement(nodes, [A, B, C])
    assert placement.home(FIRST_CLIENT, [A, B, C]) == "c"
    assert placement.home(FIRST_CLIENT, [A, B, C]) == "b"
    assert placement.home(RECOVERY_MANAGER, [A, B, C]) == "c"
    assert placement.home(RECOVERY_MANAGER, [C]) == "c"
    with pytest.raises(NoRayNodeError, match="no Ray node is alive"):
        placement.home(FIRST_CLIENT, [])


def test_a_node_with_a_given_home_is_there_and_moves_on_request() -> None:
    placement = Placement(BROKERS, [A, B, C], homes={0: "c"})
    assert placement.home(0, [A, B, C]) == "c"
    placement.fix(0, "d")
    assert placement.home(0, [A, B, C, Machine("d", "host-d")]) == "d"
