"""What client code in virtual time may not use, and the error that says which call did it.

Threads, real sockets and blocking waits have no place in a simulation: their time is not the simulator's, and their
order is that of the machine. They are refused at the call. So clients with blocking sockets (kafka-python, librdkafka)
cannot be run here; asyncio clients in pure Python can.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path

_HERE = Path(__file__).parent
_PLUMBING = {str(_HERE), str(Path(asyncio.__file__).parent), str(Path(threading.__file__).parent)}
"""The folders of this package, of asyncio, and of the standard library's modules."""


class OutsideSimulationError(RuntimeError):
    """Client code did something that virtual time does not have."""


def refusal(call: str, reason: str) -> OutsideSimulationError:
    """The error for a call that is refused: one line with the call, where client code did it, and the reason."""
    return OutsideSimulationError(f"{call} at {_place()}: {reason}")


def _place() -> str:
    """`FOLDER/FILE:LINE` of the innermost frame that belongs neither to this package nor to asyncio."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if str(Path(frame.f_code.co_filename).parent) not in _PLUMBING:
            break
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno}"
