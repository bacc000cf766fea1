"""Which build of the packages runs: the sources, or the extension modules that mypyc compiles from some of them
(`setup.py`). Both give the same trace hashes. Calls within extension modules are bound at compile time, so mutants need
the sources (`experiments/hunt/mutants`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def _origin() -> Path:
    """The file of the module `protocol.contract`, which is not imported: it needs all messages."""
    found = find_spec("protocol.contract")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin)


PACKAGES_FOLDER = _origin().resolve().parent.parent
"""The folder that holds the packages protocol, actors and experiments."""


def is_compiled() -> bool:
    """Whether the nodes and the simulator are extension modules."""
    return _origin().suffix != ".py"
