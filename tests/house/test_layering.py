"""The imports of all packages keep to the layering, and the walk that checks them reports what breaks it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.layering import STACKS, imports, violations

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "actors", "experiments", "build_tools")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("package", PACKAGES)
def test_the_code_keeps_to_the_layering(package: str) -> None:
    found = [
        line
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in violations(module_name(path), path.read_text(), is_package=path.name == "__init__.py")
    ]
    assert found == []


def test_experiments_and_its_engines_hold_packages_and_modules_of_their_stack_only() -> None:
    """`experiments` has packages only; a unit that no floor names would be under no rule."""
    assert [path.name for path in (ROOT / "experiments").glob("*.py")] == ["__init__.py"]
    for stack, floors in STACKS.items():
        folder = ROOT.joinpath(*stack.split("."))
        units = {path.relative_to(folder).parts[0].removesuffix(".py") for path in folder.rglob("*.py")}
        assert units - {"__init__"} <= {unit for floor in floors for unit in floor}


BAD = [
    ("protocol.ids", "import time"),
    ("protocol.ids", "def f():\n    from datetime import datetime"),
    ("protocol.log.epochs", "import asyncio"),
    ("protocol.log.epochs", "import os.path"),
    ("protocol.log.epochs", "import socket, json"),
    ("protocol.log.epochs", "from concurrent.futures import Future"),
    ("protocol.nodes.broker", "import ray"),
    ("protocol.nodes.broker", "from pyspark.sql import Row"),
    ("protocol.nodes.broker", "import numpy"),
    ("protocol.nodes.broker", "import actors.host"),
    ("protocol.nodes.broker", "from experiments.support import durations"),
    ("protocol.nodes.broker", "import random\nrandom.choice([1])"),
    ("protocol.nodes.broker", "from random import shuffle"),
    ("protocol.nodes.broker", "import random as rng"),
    ("protocol.nodes.broker", "open('x')"),
    ("protocol.errors", "from protocol.messages import base"),
    ("protocol.messages.base", "from protocol import contract"),
    ("protocol.contract", "from protocol.log import epochs"),
    ("protocol.log.epochs", "from protocol.metadata import image"),
    ("protocol.controller.topics", "from protocol.broker.isr import Isr"),
    ("protocol.broker.isr", "from ..controller import topics"),
    ("protocol.quorum", "from protocol.nodes import controller"),
    ("protocol.metadata", "import protocol.quorum.voters"),
    ("protocol.nodes.broker", "from protocol.v3.store import tree"),
    ("protocol.v3.store.tree", "from protocol.v3.controller import decisions"),
    ("protocol.other", "import protocol.ids"),
    ("actors.host", "from experiments.support.errors import InputError"),
    ("actors.host", "import pyspark"),
    ("actors.host", "import pandas"),
    ("experiments.engines.sim.host", "from actors import transport"),
    ("experiments.studies.sweeps.sweep", "from actors import transport"),
    ("experiments.engines.sim.engine", "from experiments.check.suite import InvariantSuite"),
    ("experiments.engines.sim.engine", "from experiments.engines.ray import session"),
    ("experiments.engines.port", "from experiments.engines import admin_requests"),
    ("experiments.faults.schema", "from experiments.scenarios.model import TopicConfig"),
    ("experiments.studies.trials.trial", "from experiments.hunt.fuzz import plan"),
    ("experiments.support.errors", "from experiments.engines import port"),
    ("experiments.other.thing", "import experiments.support.errors"),
    ("build_tools.desugar", "import experiments.support.errors"),
    ("experiments.studies.sweeps.sweep", "import pyspark"),
    ("experiments.studies.sweeps.sweep", "import tests.helpers"),
    ("experiments.studies.sweeps.sweep", "import flask"),
]

GOOD = [
    ("protocol.config", "from protocol.ids import BrokerId\nfrom protocol.errors import ErrorCode"),
    ("protocol.messages.base", "import msgpack\nfrom pydantic import BaseModel\nfrom ..ids import BrokerId"),
    ("protocol.nodes.broker", "from protocol.broker import isr\nfrom protocol.recovery import ranking"),
    ("protocol.nodes.broker", "import random\ndef f(rng: random.Random) -> float:\n    return rng.random()"),
    ("protocol.controller.topics", "from protocol.controller.partition_change import decide\nfrom . import brokers"),
    ("actors.host", "import ray, os, asyncio\nfrom protocol.nodes import broker"),
    ("experiments.engines.ray.engine", "from actors import cluster"),
    ("experiments.engines.ray.session", "from experiments.support.errors import InputError"),
    ("experiments.check.engine", "from experiments.engines.sim.engine import SimEngine"),
    ("experiments.cli.study", "from experiments.studies import sweep"),
    ("experiments.studies.pipeline.session", "from pyspark.sql import SparkSession"),
    ("experiments.studies.sweeps.sweep", "import ray\nimport pyarrow.parquet\nfrom protocol import ids"),
]


@pytest.mark.parametrize(("module", "source"), BAD, ids=[f"{module}: {source}" for module, source in BAD])
def test_fires_on_an_import_that_is_not_allowed(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(("module", "source"), GOOD, ids=[module for module, _ in GOOD])
def test_is_silent_on_what_is_allowed(module: str, source: str) -> None:
    assert violations(module, source) == []


@pytest.mark.parametrize(
    ("module", "is_package", "source", "target"),
    [
        ("a.b.c", False, "from . import x", "a.b.x"),
        ("a.b.c", False, "from ..y import x", "a.y.x"),
        ("a.b", True, "from . import x", "a.b.x"),
        ("a.b", True, "from ..y import x", "a.y.x"),
        ("a.b", True, "from .y import x", "a.b.y.x"),
    ],
)
def test_relative_imports_are_resolved(module: str, is_package: bool, source: str, target: str) -> None:
    assert [name for _, name in imports(module, ast.parse(source), is_package=is_package)] == [target]
