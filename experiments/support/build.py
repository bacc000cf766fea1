"""Which build of the packages runs: the sources, or extension modules that mypyc has made of some of them (`setup.py`).

Both give the same trace hashes. In extension modules calls are bound when they are compiled, so nothing can be replaced
in them while they run: guards are switched off in the sources only (`experiments/hunt/mutants`).
"""

from __future__ import annotations

from pathlib import Path

from protocol import contract

PACKAGES_FOLDER = Path(contract.__file__).resolve().parent.parent
"""The folder that holds the packages protocol, actors and experiments."""


def is_compiled() -> bool:
    """Whether the nodes and the simulator are extension modules."""
    return not str(contract.__file__).endswith(".py")
