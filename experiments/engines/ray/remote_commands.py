"""Commands to the supervisor of a cluster from any machine that reaches its Ray.

The supervisor is a driver, which Ray cannot call. So it has a named actor on its own Ray node, the *mailbox*, which
holds a command until the supervisor has taken and answered it. A thread of the supervisor waits for commands in one
long call and hands each to the supervisor's socket (`node_commands.py`), so that commands from here and from elsewhere
are carried out one at a time. An idle mailbox makes no calls.

Who may call the mailbox is who may use the Ray: its token, where Ray authenticates, is the permission, as for every
other call to the cluster's actors.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from actors.machines import own_node, pin
from experiments.engines.clusters.node_commands import Ask, NodeAnswer, NodeCommand
from experiments.engines.ray.connection import SUPERVISOR
from experiments.engines.ray.session import Handle

MAX_WAITING = 100
"""Commands that may wait for the supervisor; further ones are refused."""


class Mailbox:
    """The actor between callers and the supervisor; all calls run on one event loop."""

    def __init__(self) -> None:
        self._commands: asyncio.Queue[tuple[int, str]] = asyncio.Queue(MAX_WAITING)
        self._answers: dict[int, asyncio.Future[str]] = {}
        self._last = 0

    def __repr__(self) -> str:
        return SUPERVISOR

    async def ask(self, command: str) -> str:
        """The supervisor's answer, as JSON, to a command as JSON."""
        if self._commands.full():
            return NodeAnswer(failure=f"{MAX_WAITING} commands wait already").model_dump_json()
        self._last += 1
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers[self._last] = answer
        self._commands.put_nowait((self._last, command))
        return await answer

    async def take(self) -> tuple[int, str]:
        """The number and the text of the next command, as soon as there is one."""
        return await self._commands.get()

    async def answer(self, number: int, text: str) -> None:
        waiting = self._answers.pop(number)
        if not waiting.done():  # the caller may have gone
            waiting.set_result(text)


@contextmanager
def serving_remote_commands(namespace: str, carry_out: Ask) -> Iterator[None]:
    """Has commands from other machines carried out by `carry_out`, which is called on a thread, within the block."""
    options: Any = {"name": SUPERVISOR, "namespace": namespace, "num_cpus": 0, "scheduling_strategy": pin(own_node())}
    mailbox: Handle = ray.remote(Mailbox).options(**options).remote()
    threading.Thread(target=_serve, args=(mailbox, carry_out), daemon=True).start()
    yield
    ray.kill(mailbox)  # after an error Ray may be lost; it ends the actor with this process then


def _serve(mailbox: Handle, carry_out: Ask) -> None:
    """Carries out commands until the mailbox has ended or Ray is lost, which the supervisor's own polls notice."""
    with suppress(RayError):
        while True:
            number, text = ray.get(mailbox.take.remote())
            ray.get(mailbox.answer.remote(number, answer_to(text, carry_out).model_dump_json()))


def answer_to(text: str, carry_out: Ask) -> NodeAnswer:
    """The answer of `carry_out` to a command as JSON; a failure where it is none, or there is no answer."""
    try:
        return carry_out(NodeCommand.model_validate_json(text))
    except ValueError as error:
        return NodeAnswer(failure=f"the supervisor has another version of isray ({' '.join(str(error).split())})")
    except OSError as error:
        return NodeAnswer(failure=f"the supervisor does not answer: {error}")
