"""The mailbox between callers elsewhere and the supervisor, and how a command finds its way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from experiments.engines.admin_client import AdminError
from experiments.engines.clusters.cluster_state import ClusterOptions, Status, claim, write_state
from experiments.engines.clusters.node_commands import NodeAction, NodeAnswer, NodeCommand, SupervisorGoneError
from experiments.engines.ray import remote_commands, supervision
from experiments.engines.ray.connection import RayAdminChannel
from experiments.engines.ray.remote_commands import MAX_WAITING, Mailbox, answer_to
from protocol.errors import ErrorCode

LIST = NodeCommand(action=NodeAction.LIST)


def test_each_caller_gets_the_answer_to_its_own_command() -> None:
    async def act() -> tuple[str, ...]:
        mailbox = Mailbox()
        callers = [asyncio.create_task(mailbox.ask(text)) for text in ("a", "b", "gone")]
        taken = [await mailbox.take() for _ in callers]
        assert [text for _, text in taken] == ["a", "b", "gone"]
        callers.pop().cancel()
        await asyncio.sleep(0)
        for number, text in reversed(taken):
            await mailbox.answer(number, f"done {text}")
        return tuple(await asyncio.gather(*callers))

    assert asyncio.run(act()) == ("done a", "done b")


def test_commands_that_the_supervisor_does_not_take_are_refused_beyond_a_number() -> None:
    async def act() -> NodeAnswer:
        mailbox = Mailbox()
        waiting = [asyncio.create_task(mailbox.ask("a")) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0)
        refused = await mailbox.ask("b")
        for task in waiting:
            task.cancel()
        return NodeAnswer.model_validate_json(refused)

    assert asyncio.run(act()) == NodeAnswer(failure=f"{MAX_WAITING} commands wait already")


def test_a_command_of_another_version_and_a_lost_supervisor_are_answered_with_one_line() -> None:
    def lost(command: NodeCommand) -> NodeAnswer:
        raise ConnectionError("closed")

    other = answer_to('{"action": "shuffle"}', lost)
    assert other.failure.startswith("the supervisor has another version of isray (")
    assert "\n" not in other.failure
    assert answer_to(LIST.model_dump_json(), lost) == NodeAnswer(failure="the supervisor does not answer: closed")
    kept = NodeAnswer(found="x", allowed="y")
    assert answer_to(LIST.model_dump_json(), lambda command: kept) == kept


def test_the_cluster_of_this_user_at_an_address_is_asked_over_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    here = {"address": "192.0.2.10:6379", "status": Status.READY}
    write_state(claim(ClusterOptions(name="shop")).model_copy(update=here))
    monkeypatch.setattr(supervision, "ask", lambda state, command: NodeAnswer(found=state.options.name))
    for name, address in (("shop", None), (None, None), (None, "192.0.2.10:6379")):
        with supervision.supervised(name, address) as ask:
            assert ask(LIST).found == "shop"


def test_a_channel_without_a_supervisor_says_so() -> None:
    class Gone(RayAdminChannel):
        def ask_supervisor(self, command: str) -> str:
            raise AdminError(ErrorCode.BROKER_NOT_AVAILABLE, "the supervisor of the cluster has ended")

    with pytest.raises(SupervisorGoneError, match=r"^the supervisor of the cluster has ended$"):
        supervision.through_ray(Gone("n", "a"))(LIST)


def test_the_mailbox_is_named_in_lists_of_actors() -> None:
    assert repr(Mailbox()) == remote_commands.SUPERVISOR == "supervisor"
