"""The entry point of the `isray` command: an interrupt while its modules are imported ends it without a traceback.

The imports take up to a second, during which nothing has begun that would need an orderly end; Python's own handler
would raise KeyboardInterrupt in the middle of them. `main.run` handles the interrupts that come later.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, whose module is among those that are still to be imported."""


def _end(number: int, frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


def run() -> None:
    """Imports the commands and runs the one that the command line names."""
    before = signal.signal(signal.SIGINT, _end)
    from experiments.cli.main import run as run_command

    signal.signal(signal.SIGINT, before)
    run_command()


if __name__ == "__main__":
    run()
