"""What a sweep says of nodes that Ray has lost, and how it notices that Ray itself is."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from experiments.studies.sweeps.nodes import MISSED, Endpoint, WorkersLost, alive_nodes, losses


def node(name: str, cpus: float, *, alive: bool = True) -> dict[str, Any]:
    return {"NodeID": name * 8, "NodeManagerAddress": "10.0.0.1", "Alive": alive, "Resources": {"CPU": cpus}}


def test_a_lost_node_is_named_with_its_tasks() -> None:
    before = alive_nodes([node("a", 4.0), node("b", 2.0)])
    now = alive_nodes([node("a", 4.0, alive=False), node("b", 2.0), node("c", 8.0)])
    assert (sum(before.values()), sum(now.values())) == (6.0, 10.0)
    assert losses(before, now) == [
        "Ray has lost node aaaaaaaa (10.0.0.1); the tasks that ran there, at most 4, are run again on the others, 2 now"
    ]
    assert losses(now, now) == []


def test_a_port_that_refuses_is_a_loss() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        endpoint = Endpoint("the raylet", "127.0.0.1", port)
        assert endpoint.answers()
        endpoint.look()
    assert not endpoint.answers()
    with pytest.raises(WorkersLost, match=f"^Ray is lost: the raylet at 127.0.0.1:{port} does not answer$"):
        endpoint.look()


def test_a_port_that_is_slow_is_a_loss_after_some_looks_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint("its control store", "127.0.0.1", 1)
    answers = iter([*[False] * (MISSED - 1), True, *[False] * MISSED])
    monkeypatch.setattr(endpoint, "answers", lambda: next(answers))
    for _ in range(2 * MISSED - 1):
        endpoint.look()
    with pytest.raises(WorkersLost, match="its control store"):
        endpoint.look()
    assert list(answers) == []
