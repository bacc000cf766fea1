"""The calls by which a node of a cluster is polled, and by which it says that it has news."""

from __future__ import annotations

import pytest

from actors import members
from actors.members import Member, poll_members


class Actor:
    """Stands for a node's actor: its calls, which are under way until they are in `ended`."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.ended: set[str] = set()

    def __getattr__(self, name: str) -> Actor:
        self._name = name
        return self

    def remote(self, *arguments: object) -> str:
        self.made.append(f"{self._name} {len(self.made)}")
        return self.made[-1]

    def take(self) -> list[str]:
        """The calls since the last one, without their numbers."""
        found, self.made = [call.partition(" ")[0] for call in self.made], []
        return found


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> Actor:
    actor = Actor()
    monkeypatch.setattr(members.ray, "wait", lambda calls, timeout: ([c for c in calls if c in actor.ended], []))
    return actor


def test_a_node_may_have_news_until_it_is_asked_and_once_the_wait_for_news_has_ended(actor: Actor) -> None:
    member = Member(actor=actor)
    assert member.may_have_news()
    member.ask(with_news=True)
    assert actor.take() == ["poll", "await_news"]
    assert not member.may_have_news()
    actor.ended.add(str(member.news))
    assert member.may_have_news()


def test_a_poll_under_way_is_not_repeated_nor_a_wait_for_news(actor: Actor) -> None:
    member = Member(actor=actor)
    member.ask(with_news=True)
    actor.take()
    member.ask(with_news=True)
    assert actor.take() == []
    member.poll = None  # its report has been taken
    member.ask(with_news=True)
    assert actor.take() == ["poll"]
    member.poll = None
    actor.ended.add(str(member.news))
    member.ask(with_news=True)
    assert actor.take() == ["poll", "await_news"]


def test_without_news_there_is_only_the_poll(actor: Actor) -> None:
    member = Member(actor=actor)
    member.ask(with_news=False)
    assert actor.take() == ["poll"]


def test_all_nodes_are_polled_once_one_has_news(actor: Actor) -> None:
    nodes = [Member(actor=actor), Member(actor=actor)]
    poll_members(nodes, only_news=True)
    assert actor.take() == ["poll", "await_news"] * 2
    for node in nodes:
        node.poll = None
    poll_members(nodes, only_news=True)
    assert actor.take() == []
    poll_members(nodes, only_news=False)
    assert actor.take() == ["poll"] * 2
    for node in nodes:
        node.poll = None
    actor.ended.add(str(nodes[1].news))
    poll_members(nodes, only_news=True)
    assert actor.take() == ["poll", "poll", "await_news"]
