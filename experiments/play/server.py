"""Serves the page of one cluster on 127.0.0.1, for whoever has the token in its address.

One `Player` owns the world. Its actions and the passing of time come one after another, in a thread beside the event
loop, so that the page stays alive. After each of them the state is encoded once, and every open page receives it as a
server-sent event: a page that is slow receives the newest state only. A running cluster whose last page is gone pauses.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvicorn
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from experiments.explorer.page import diagram, script, style
from experiments.play.world import RefusedError, World
from experiments.support.errors import InputError
from experiments.support.templates import templates

FOLDER = Path(__file__).parent
TICK_S = 0.2
"""How often a running cluster goes on, and how long a page is without a sign of life at most, times five."""
SPEEDS = (0.1, 0.5, 1.0, 5.0, 20.0)
ALONE_S = 10
UNSEEN_S = 1.0
"""How often a live cluster is looked at while no page is open."""
COMMANDS = ("run", "pause", "speed", "step", "back", "rewind", "act", "load", "lesson", "answer")
Found = TypeVar("Found")


class Player:
    """The world with its clock: `is_running`, and at which `speed`, in virtual seconds per second."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_running, self.speed, self.is_closing = world.is_live, 1.0, False
        self.version, self.pages, self.notice = 0, 0, ""
        self.text = self._encoded()
        self._turn, self._changed = asyncio.Lock(), asyncio.Event()
        self._clock: asyncio.Task[None] | None = None
        world.follow(partial(self._show_meanwhile, asyncio.get_running_loop()))

    def _show_meanwhile(self, loop: asyncio.AbstractEventLoop) -> None:
        """Shows the pages a state within an action; called in the thread of the action."""
        loop.call_soon_threadsafe(self._show, self._encoded())

    def _show(self, text: str) -> None:
        self.text = text
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def do(self, action: Callable[[], Found]) -> Found:
        """Carries out an action on the world in its turn, and shows every page the state after it."""
        async with self._turn:
            try:
                return await asyncio.to_thread(action)
            except RefusedError as error:
                self.notice, self.is_running = f"Refused: {error}", self.world.is_live
                raise
            finally:
                self._show(await asyncio.to_thread(self._encoded))

    def _encoded(self) -> str:
        shown = {"running": self.is_running, "speed": self.speed, "speeds": SPEEDS, "notice": self.notice}
        return json.dumps(self.world.state() | shown, separators=(",", ":"))

    async def act(self, command: dict[str, object]) -> str:
        """Carries out what a page asks for: `{"do": name, ...}`; returns what was answered. RefusedError."""
        name = command.get("do")
        self.notice = ""
        if (why := self.world.unavailable.get(str(name))) is not None:
            raise RefusedError(why)
        if name == "run":
            self.is_running = True
            await self.do(lambda: None)
            self.go_on()
            return ""
        found = await self.do(lambda: self._action(str(name), command))
        return found

    def go_on(self) -> None:
        """Has time pass from now on, if the cluster runs."""
        if self._clock is None or self._clock.done():
            self._clock = asyncio.create_task(self._run())

    def _action(self, name: str, command: dict[str, object]) -> str:
        match name:
            case "pause":
                self.is_running = False
            case "speed":
                self._set_speed(command.get("speed"))
            case "step":
                self.is_running = False
                self.notice = self.world.step()
            case "rewind":
                self.is_running = False
                count = command.get("count")
                self.world.rewind(count if isinstance(count, int) else -1)
            case "back":
                self.is_running = False
                self.world.back()
            case "act":
                step = command.get("step")
                if not isinstance(step, dict):
                    raise RefusedError("found no step; allowed: a mapping with one key")
                self.notice = self.world.act(step)
            case "load":
                self.is_running = False
                self.world = self.world.load(str(command.get("text", "")), _seed_of(command.get("seed", 0)))
            case "lesson":
                self.is_running = False
                self.world = self.world.lesson(str(command.get("name", "")))
            case "answer":
                self.is_running = False
                self.world.answer()
            case _:
                raise RefusedError(f"found {name!r}; allowed: {', '.join(COMMANDS)}")
        return self.notice

    def _set_speed(self, speed: object) -> None:
        if speed not in SPEEDS:
            raise RefusedError(f"found speed {speed!r}; allowed: one of {', '.join(map(str, SPEEDS))}")
        assert isinstance(speed, int | float)
        self.speed = float(speed)

    async def _run(self) -> None:
        """Lets time pass while the cluster runs, or carries out the steps ahead, one a second at speed 1. Looks at a
        cluster that is live.
        """
        seen = time.monotonic()
        while self.is_running and not self.is_closing:
            began = time.monotonic()
            seen = began if self.pages else seen
            if began - seen > ALONE_S and not self.world.is_live:
                self.is_running = False
            steps = self.world.has_steps_ahead()
            try:
                await self.do(self._go_on)
            except RefusedError:
                if not self.world.is_live:
                    return
            pause_s = max(TICK_S, 1 / self.speed) if steps else TICK_S
            if self.world.is_live and not self.pages:
                pause_s = UNSEEN_S
            await asyncio.sleep(max(0.02, pause_s - (time.monotonic() - began)))

    def _go_on(self) -> None:
        if not self.is_running:
            return
        if self.world.has_steps_ahead():
            self.notice = self.world.step()
        else:
            self.world.advance(round(1000 * TICK_S * self.speed))

    async def follow(self) -> AsyncIterator[str]:
        """The states as server-sent events; a comment where there is none for a second."""
        seen = -1
        self.pages += 1
        try:
            yield "retry: 500\n\n"
            while not self.is_closing:
                changed = self._changed
                if self.version != seen:
                    seen = self.version
                    yield f"data: {self.text}\n\n"
                else:
                    yield ": unchanged\n\n"
                try:
                    await asyncio.wait_for(changed.wait(), 5 * TICK_S)
                except TimeoutError:
                    continue
        finally:
            self.pages -= 1


def _seed_of(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise RefusedError(f"found seed {given!r}; allowed: a whole number from 0 on")
    return given


Handler = Callable[[Request], Awaitable[Response]]


def application(player: Player, token: str) -> Starlette:
    """The page, its events and its actions. Every request needs the token."""

    async def page(request: Request) -> Response:
        return HTMLResponse(page_text(), headers={"cache-control": "no-store"})

    async def events(request: Request) -> Response:
        headers = {"cache-control": "no-store"}
        return StreamingResponse(player.follow(), media_type="text/event-stream", headers=headers)

    async def act(request: Request) -> Response:
        try:
            command = await request.json()
        except ValueError:
            command = None
        if not isinstance(command, dict):
            return JSONResponse({"refused": "found no mapping as JSON"}, status_code=400)
        try:
            return JSONResponse({"answer": await player.act(command)})
        except RefusedError as error:
            return JSONResponse({"refused": str(error)})

    async def scenario(request: Request) -> Response:
        try:
            text = await player.do(lambda: player.world.scenario())
        except RefusedError as error:
            return PlainTextResponse(str(error), status_code=409)
        headers = {"content-disposition": 'attachment; filename="play.yaml"', "cache-control": "no-store"}
        return PlainTextResponse(text, media_type="application/yaml", headers=headers)

    places: dict[str, tuple[Handler, list[str]]] = {
        "/": (page, ["GET"]),
        "/events": (events, ["GET"]),
        "/act": (act, ["POST"]),
        "/scenario": (scenario, ["GET"]),
    }
    return Starlette(
        routes=[Route(path, _guarded(handler, token), methods=methods) for path, (handler, methods) in places.items()]
    )


def _guarded(handler: Handler, token: str) -> Handler:
    """The handler for requests with the token; others get a 403."""

    async def handle(request: Request) -> Response:
        given = request.query_params.get("token", "")
        if secrets.compare_digest(given.encode(), token.encode()):
            return await handler(request)
        text = "403: the token is missing or wrong. Open the address that the command has printed."
        return PlainTextResponse(text, status_code=403)

    return handle


def page_text() -> str:
    """The page; it loads nothing but its events."""
    return (
        templates(FOLDER)
        .get_template("page.html.j2")
        .render(
            style=style() + Markup((FOLDER / "play.css").read_text(encoding="utf-8")),
            diagram=diagram(),
            script=script() + Markup((FOLDER / "play.js").read_text(encoding="utf-8")),
        )
    )


class PlayServer:
    """A server for a world on 127.0.0.1, on `port` or (0) a free one. InputError where the port is not free."""

    def __init__(self, world: World, port: int = 0, token: str = "") -> None:
        self.token = token or secrets.token_urlsafe(16)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("127.0.0.1", port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise InputError("--port", "", f"{port}: {error.strerror}", "a free port, or 0 for any") from error
        self.port: int = self._socket.getsockname()[1]
        self._world = world
        self._server: uvicorn.Server | None = None
        self._player: Player | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Serves until `stop`, or until an interrupt, which ends it in order."""
        try:
            asyncio.run(self._serve())
        except KeyboardInterrupt:
            return
        finally:
            self._socket.close()

    async def _serve(self) -> None:
        player = Player(self._world)
        config = uvicorn.Config(
            application(player, self.token), log_level="warning", timeout_graceful_shutdown=2, lifespan="off"
        )
        if player.is_running:
            player.go_on()
        server = _Server(config, player)
        self._server = server
        await server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Has `serve` return; may be called from another thread."""
        if self._server is not None:
            self._server.should_exit = True


class _Server(uvicorn.Server):
    """A server that ends the events of its pages when it ends, for which it would wait otherwise."""

    def __init__(self, config: uvicorn.Config, player: Player) -> None:
        super().__init__(config)
        self._player = player

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._player.is_closing = True
        await super().shutdown(sockets)
