"""The optional compiled build: with ISRAY_COMPILE=1, mypyc compiles the modules below to extension modules.

Everything else about the distribution is in pyproject.toml. The sources are the default; tests and mutants run on them.
In a compiled wheel the extension modules are beside the sources, and Python imports them first. Messages are not
compiled, since pydantic creates their classes.
"""

from __future__ import annotations

import ast
import os
import shutil
import sys
from contextlib import chdir
from pathlib import Path

from setuptools import Extension, setup

HERE = Path(__file__).parent

COMPILED = (
    "protocol/ids.py",
    "protocol/features.py",
    "protocol/config.py",
    "protocol/kafka_rules.py",
    "protocol/contract.py",
    "protocol/events/*.py",
    "protocol/messages/codec.py",
    "protocol/messages/metadata_batch.py",
    "protocol/log/*.py",
    "protocol/metadata/*.py",
    "protocol/broker/*.py",
    "protocol/controller/*.py",
    "protocol/client/*.py",
    "protocol/nodes/*.py",
    "protocol/quorum/*.py",
    "protocol/v3/broker/*.py",
    "protocol/v3/controller/term.py",
    "protocol/v3/store/node.py",
    "experiments/engines/sim/cluster.py",
    "experiments/engines/sim/disk.py",
    "experiments/engines/sim/network.py",
    "experiments/engines/sim/timers.py",
    "experiments/studies/failures/absences.py",
    "experiments/studies/failures/biased.py",
    "experiments/studies/failures/timeline.py",
    "experiments/studies/failures/transitions.py",
    "experiments/studies/trials/control.py",
    "experiments/studies/trials/control_partition.py",
    "experiments/studies/trials/decisions.py",
    "experiments/studies/trials/importance.py",
    "experiments/studies/trials/observer.py",
    "experiments/studies/trials/splitting.py",
    "experiments/studies/trials/states.py",
    "experiments/studies/trials/trial.py",
    "experiments/studies/trials/writer.py",
    "experiments/check/regressions.py",
    "experiments/check/rules.py",
    "experiments/check/truth.py",
    "experiments/check/suite.py",
    "experiments/check/invariants*.py",
)
"""The modules that run for every event."""

PRIVATE = ("-fvisibility=hidden", "-fno-semantic-interposition")
"""C compiler flags: no other code links to the modules' functions, so the compiler may inline and call them
directly.
"""


def compiled_paths() -> list[str]:
    """The paths of the modules to compile, relative to this file, sorted."""
    found = {path.relative_to(HERE).as_posix() for pattern in COMPILED for path in HERE.glob(pattern)}
    return sorted(found - {path for path in found if path.endswith("__init__.py")})


def extensions() -> list[Extension]:
    """Stages a copy of the packages with the compiled modules rewritten (`build_tools/desugar.py`), and
    compiles them.
    """
    sys.path.insert(0, str(HERE))
    from mypyc.build import mypycify

    from build_tools.desugar import enumerations, rewrite

    stage = HERE / "build" / "desugared"
    shutil.rmtree(stage, ignore_errors=True)
    for package in ("protocol", "experiments", "actors"):
        shutil.copytree(HERE / package, stage / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "build_tools" / "compiled.ini", stage)
    enums = {name for path in HERE.glob("protocol/**/*.py") for name in enumerations(ast.parse(path.read_text()))}
    paths = compiled_paths()
    modules = {path.removesuffix(".py").replace("/", ".") for path in paths}
    for path in paths:
        (stage / path).write_text(rewrite((HERE / path).read_text(), modules, enums))
    with chdir(stage):
        found: list[Extension] = mypycify(
            ["--config-file=compiled.ini", *paths], opt_level="3", debug_level="0", target_dir=str(HERE / "build")
        )
    for extension in found:
        if extension.name.endswith("__mypyc"):
            extension.extra_compile_args = [*extension.extra_compile_args, *PRIVATE]
    return found


if os.environ.get("ISRAY_COMPILE") == "1":
    setup(ext_modules=extensions())
else:
    setup()
