"""The optional compiled build: with ISRAY_COMPILE=1 the modules below become extension modules, made by mypyc.

Everything else about the distribution is in pyproject.toml. The sources are the default, and what tests and mutants
run on; extension modules stand beside them in a wheel, and are what Python then imports. Messages stay as they are,
since pydantic makes their classes.
"""

from __future__ import annotations

import os
from pathlib import Path

from setuptools import setup

COMPILED = (
    "protocol/ids.py",
    "protocol/contract.py",
    "protocol/log/*.py",
    "protocol/metadata/*.py",
    "protocol/broker/*.py",
    "protocol/controller/*.py",
    "protocol/client/*.py",
    "protocol/nodes/*.py",
    "experiments/sim/cluster.py",
    "experiments/sim/disk.py",
    "experiments/sim/network.py",
    "experiments/sim/timers.py",
    "experiments/check/truth.py",
    "experiments/check/suite.py",
    "experiments/check/invariants*.py",
)
"""What runs for every event."""


def compiled() -> list[str]:
    """The modules, as paths from here."""
    here = Path(__file__).parent
    found = {path.relative_to(here).as_posix() for pattern in COMPILED for path in here.glob(pattern)}
    return sorted(path for path in found if not path.endswith("__init__.py"))


if os.environ.get("ISRAY_COMPILE") == "1":
    from mypyc.build import mypycify

    setup(ext_modules=mypycify(["--config-file=compiled.ini", *compiled()], opt_level="2", debug_level="0"))
else:
    setup()
