"""The lock is whole and names no host, dependencies are bounded, and a built wheel holds all that the command needs."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import MISSING, fields, is_dataclass
from email import message_from_bytes
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from actors.nodes import NodeSetup, NodeSnapshot, PollReport
from build_tools import desugar
from protocol.events.base import Trace

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
DECLARED = [Requirement(line) for line in PROJECT["dependencies"] + EXTRAS["dev"]]
LOCK = (ROOT / "requirements.lock").read_text()
PACKAGES = ("protocol", "actors", "experiments")
PARTS = {"markupsafe": "jinja2", "pydantic-core": "pydantic"}
"""Distributions that come with another: each is a part of it, pinned by it."""

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)(?P<rest>.*(?:\n    (?:--hash|#).*)*)", re.MULTILINE)


def pins() -> dict[str, list[str]]:
    """Canonical name -> locked versions (one per environment marker)."""
    versions: dict[str, list[str]] = {}
    for pin in _PIN.finditer(LOCK):
        versions.setdefault(canonicalize_name(pin[1]), []).append(pin[2])
    return versions


@pytest.mark.parametrize("requirement", DECLARED, ids=str)
def test_a_dependency_is_bounded_and_locked_within_its_bounds(requirement: Requirement) -> None:
    assert {">=", "<"} <= {bound.operator for bound in requirement.specifier}
    locked = pins()[canonicalize_name(requirement.name)]
    assert all(requirement.specifier.contains(version) for version in locked)


def test_the_developers_have_every_extra() -> None:
    """So the lock pins what an extra brings, and the tests run with it."""
    assert {line for lines in EXTRAS.values() for line in lines} == set(EXTRAS["dev"])


def test_the_packages_import_only_what_their_wheel_requires() -> None:
    """Within functions, too: an environment of developers would hide a dependency that only the tests declare."""
    required = PROJECT["dependencies"] + [line for name, lines in EXTRAS.items() if name != "dev" for line in lines]
    allowed = {canonicalize_name(Requirement(line).name) for line in required}
    owners = packages_distributions()
    assert imported_from_elsewhere()
    for module, file in imported_from_elsewhere().items():
        names = {canonicalize_name(owner) for owner in owners.get(module, [module])}
        assert {PARTS.get(name, name) for name in names} & allowed, f"{file} imports {module}"


def imported_from_elsewhere() -> dict[str, Path]:
    """The top-level modules that the packages import, without their own and Python's; each with a file that does."""
    found = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            found |= {name.partition(".")[0]: path.relative_to(ROOT) for name in names}
    return {name: path for name, path in found.items() if name not in {*PACKAGES, *sys.stdlib_module_names}}


def test_every_pin_is_hashed() -> None:
    assert len(pins()) > len(DECLARED)
    assert [pin[1] for pin in _PIN.finditer(LOCK) if "--hash=sha256:" not in pin["rest"]] == []


@pytest.mark.parametrize("word", ["://", "index-url", "find-links", "trusted-host", " @ ", "file:"])
def test_the_lock_names_no_host(word: str) -> None:
    assert word not in LOCK


def test_no_other_lock_lies_beside_it() -> None:
    assert not (ROOT / "uv.lock").exists()


def test_the_command_is_there() -> None:
    module, _, function = PROJECT["scripts"]["isray"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_python_bound_is_the_one_that_make_checks() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert "sys.version_info < (3, 11)" in (ROOT / "Makefile").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the sources; beside it, in `source`, what it was built from."""
    folder = tmp_path_factory.mktemp("wheel")
    source, ignore = folder / "source", shutil.ignore_patterns("__pycache__", "*.egg-info")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tests", source / "tests", ignore=ignore)
    script = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=source, check=True, capture_output=True)
    (path,) = folder.glob("isray-*.whl")
    return path


def test_the_wheel_holds_modules_and_data_and_nothing_else(wheel: Path) -> None:
    source = wheel.parent / "source"
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = (path for package in PACKAGES for path in (source / package).rglob("*"))
    assert held == {str(path.relative_to(source)) for path in files if path.is_file()}


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    (name,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".dist-info/METADATA"))
    said = message_from_bytes(zipfile.ZipFile(wheel).read(name))
    assert (said["Name"], said["Version"], said["License-Expression"]) == ("isray", PROJECT["version"], "Apache-2.0")
    assert said["Requires-Python"] == PROJECT["requires-python"]
    assert (said.get_all("Provides-Extra"), said.get_all("Project-URL")) == ([*EXTRAS], None)
    assert str(said.get_payload()).startswith("# isray\n")
    assert wheel.name == f"isray-{PROJECT['version']}-py3-none-any.whl"


def test_what_the_wheel_holds_runs_shipped_files_by_name_outside_a_checkout(wheel: Path, tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    environment = os.environ | {"PYTHONPATH": str(installed)}

    def output(script: str, *arguments: str) -> str:
        command = [sys.executable, "-c", script, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        return done.stdout

    run = "from experiments.cli.__main__ import run; run()"
    scenario = json.loads(output(run, "scenario", "run", "last-replica-standing", "--json"))
    assert (scenario["name"], scenario["passed"]) == ("last-replica-standing", True)
    listed = json.loads(output(run, "study", "list", "--json"))
    assert len(listed) == len(list((ROOT / "experiments" / "studies").glob("*.yaml")))
    assert all(study["file"].startswith(str(installed)) for study in listed)
    versions = "from experiments.studies.sweeps.output import current_versions; print(current_versions('x'))"
    assert "'git_revision': None" in output(versions)


def compiled_paths() -> list[Path]:
    """The modules that a compiled build compiles (`setup.py`)."""
    setup = ast.parse((ROOT / "setup.py").read_text())
    (patterns,) = (
        ast.literal_eval(node.value)
        for node in setup.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "COMPILED"
    )
    return [path for pattern in patterns for path in ROOT.glob(pattern)]


def module_names() -> dict[str, Path]:
    """The names of the modules that a compiled build compiles, with their paths."""
    return {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in compiled_paths()}


def expressions(path: Path) -> list[ast.expr]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.expr)]


def test_no_compiled_module_has_an_expression_that_mypyc_refuses() -> None:
    """`x in (*a, *b)` ends a build after a minute, where a set does the same; so does `Counter[X]()`, where an
    annotation gives the type.
    """
    paths = compiled_paths()
    assert len(paths) > 100
    found = [(f"{path.relative_to(ROOT)}:{node.lineno}", node) for path in paths for node in expressions(path)]
    counters = [
        place
        for place, node in found
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and ast.unparse(node.func.value) == "Counter"
    ]
    assert counters == []
    refused = [
        place
        for place, node in found
        if isinstance(node, ast.Compare)
        for operator, operand in zip(node.ops, node.comparators, strict=True)
        if isinstance(operator, ast.In | ast.NotIn)
        and isinstance(operand, ast.Tuple | ast.List)
        and any(isinstance(element, ast.Starred) for element in operand.elts)
    ]
    assert refused == []


def test_compiled_classes_with_subclasses_that_are_not_compiled_allow_them() -> None:
    """And so do the classes from which such a class is derived."""
    compiled = module_names()
    bases: set[str] = set()
    for path in (path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")):
        if path in compiled.values():
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module in compiled]
        names = {alias.name for node in imports for alias in node.names}
        bases |= {ast.unparse(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases} & names
    classes = [node for path in compiled.values() for node in ast.parse(path.read_text()).body]
    above = {
        node.name: {ast.unparse(base) for base in node.bases} for node in classes if isinstance(node, ast.ClassDef)
    }
    while more := {base for name in bases for base in above[name] if base in above} - bases:
        bases |= more
    assert bases == set(desugar._BASES)


def test_compiled_classes_that_ray_pickles_are_known_to_the_rewriter() -> None:
    """Those that parameters, states and reports of nodes hold, and that take arguments."""
    found: set[type] = set()

    def visit(hint: Any) -> None:
        for part in get_args(hint):
            visit(part)
        if isinstance(hint, type) and hint not in found and hint.__module__.split(".")[0] in PACKAGES:
            found.add(hint)
            if is_dataclass(hint):
                for each in get_type_hints(hint).values():
                    visit(each)

    for kind in (NodeSetup, NodeSnapshot, PollReport):
        visit(kind)
    compiled = module_names()
    takes_arguments = {
        kind.__name__
        for kind in found
        if kind.__module__ in compiled
        if is_dataclass(kind)
        if any(field.default is MISSING and field.default_factory is MISSING for field in fields(kind))
    }
    assert takes_arguments | {Trace.__name__} == set(desugar._PICKLED)
