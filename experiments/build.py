"""Which build of the packages runs: the sources, or extension modules that mypyc has made of some of them (`setup.py`).

Both give the same trace hashes. In extension modules calls are bound when they are compiled, so nothing can be replaced
in them while they run: guards are switched off in the sources only (`experiments/mutants`).
"""

from __future__ import annotations

from protocol import contract


def is_compiled() -> bool:
    """Whether the nodes and the simulator are extension modules."""
    return not str(contract.__file__).endswith(".py")
