"""Whether the control store of a Ray cluster (its head's `gcs_server`) can be reached.

Without the control store Ray's calls about actors and nodes block, and after a minute Ray aborts the process. So what
waits for Ray asks here now and then, and before such calls, and can end in good order. One that restarts within
`LOST_AFTER_S` is not lost.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Thread
from typing import TypeVar

Result = TypeVar("Result")
LOST_AFTER_S = 3.0
_CONNECT_WITHIN_S = 2.0
_TRY_AGAIN_S = 0.5
_LOOK_AFTER_S = 1.0


class ControlStoreLostError(RuntimeError):
    """Ray's control store cannot be reached any more."""


def require_control_store(address: str) -> None:
    """ControlStoreLostError where nothing accepts connections at `address` (host:port) for `LOST_AFTER_S`."""
    host, _, port = address.rpartition(":")
    deadline_s = time.monotonic() + LOST_AFTER_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=_CONNECT_WITHIN_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise ControlStoreLostError(f"the control store of Ray at {address} is lost ({error})") from error
        time.sleep(_TRY_AGAIN_S)


def ask_control_store(call: Callable[[], Result], address: str) -> Result:
    """The result of a call that Ray makes to its control store at `address`. ControlStoreLostError where that is lost;
    the call, which blocks then, is left to a thread that ends with the process.
    """
    result: Future[Result] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except (ValueError, RuntimeError) as error:
            result.set_exception(error)
        finally:
            result.cancel()  # after any other error, which is a defect

    Thread(target=run, daemon=True).start()
    while not wait([result], _LOOK_AFTER_S).done:
        require_control_store(address)
    return result.result()
