"""The addresses of nodes, as their actors answer: asked once, until they are forgotten."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.exceptions import RayActorError

from actors.peers import Address, PeerGoneError, RayPeers
from tests.unit.actors.transport_helpers import LOOPBACK, on_loop

RUN = "run-1"


class Actors:
    """The actors of Ray, each with the incarnation of its node; None: it has died. `asked` are the calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.incarnations: dict[str, int | None] = {}
        self.asked: list[str] = []
        monkeypatch.setattr("actors.peers.ray.get_actor", self._find)

    def _find(self, name: str, run: str) -> SimpleNamespace:
        if run != RUN or name not in self.incarnations:
            raise ValueError(name)
        return SimpleNamespace(address=SimpleNamespace(remote=lambda: self._answer(name)))

    async def _answer(self, name: str) -> Address:
        self.asked.append(name)
        incarnation = self.incarnations[name]
        if incarnation is None:
            raise RayActorError
        return Address(LOOPBACK, 1, b"", incarnation)


@on_loop
async def test_an_address_is_asked_for_once_until_it_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    actors, peers = Actors(monkeypatch), RayPeers(RUN)
    actors.incarnations["broker-0"] = 1
    assert [(await peers.address(0)).incarnation for _ in range(2)] == [1, 1]
    actors.incarnations["broker-0"] = 2
    peers.forget(0, older_than=1)
    assert (await peers.address(0)).incarnation == 1
    peers.forget(0, older_than=2)
    assert (await peers.address(0)).incarnation == 2
    peers.forget(0)
    peers.forget(0)
    assert (await peers.address(0)).incarnation == 2
    assert actors.asked == ["broker-0"] * 3


@on_loop
async def test_a_node_without_an_actor_and_one_whose_actor_has_died_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    actors, peers = Actors(monkeypatch), RayPeers(RUN)
    actors.incarnations["broker-0"] = None
    for node in (0, 1):
        with pytest.raises(PeerGoneError, match=f"broker-{node}"):
            await peers.address(node)
    actors.incarnations["broker-0"] = 3
    assert (await peers.address(0)).incarnation == 3
