"""The imports of all packages keep to the layering, and the walk that checks them reports what breaks it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.house.layering import STACKS, imports, violations
from tests.yaml_rows import rows

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


@pytest.mark.parametrize(("module", "source"), rows(__file__, "wrong-imports.yaml"))
def test_fires_on_an_import_that_is_not_allowed(module: str, source: str) -> None:
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(("module", "source"), rows(__file__, "allowed-imports.yaml"))
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
