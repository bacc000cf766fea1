"""Which build of the packages runs: the sources, or the extension modules that mypyc compiles from some of them
(`setup.py`). Both give the same trace hashes. Calls within extension modules are bound at compile time, so mutants need
the sources (`experiments/hunt/mutants`).
"""

from __future__ import annotations

from pathlib import Path

from protocol import contract

PACKAGES_FOLDER = Path(contract.__file__).resolve().parent.parent
"""The folder that holds the packages protocol, actors and experiments."""


def is_compiled() -> bool:
    """Whether the nodes and the simulator are extension modules."""
    return not str(contract.__file__).endswith(".py")
