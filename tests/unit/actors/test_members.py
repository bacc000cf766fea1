"""When the node of a cluster is polled: always, or only where it has news."""

from __future__ import annotations

import pytest

from actors import members
from actors.members import Member


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


def test_a_node_is_polled_again_for_news_once_it_has_some(actor: Actor) -> None:
    member = Member(actor=actor)
    member.ask(only_news=True)
    assert actor.take() == ["poll", "await_news"]
    member.ask(only_news=True)
    assert actor.take() == [], "the poll is under way"
    member.poll = None  # its report has been taken
    member.ask(only_news=True)
    assert actor.take() == [], "there are no news"
    actor.ended.add(str(member.news))
    member.ask(only_news=True)
    assert actor.take() == ["poll", "await_news"]


def test_a_node_without_news_is_polled_where_all_are(actor: Actor) -> None:
    member = Member(actor=actor)
    member.ask(only_news=True)
    member.poll = None
    actor.take()
    member.ask(only_news=False)
    assert actor.take() == ["poll"]
    member.poll = None
    member.ask(only_news=False)
    assert actor.take() == ["poll"]
