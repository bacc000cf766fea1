"""Limits that keep code readable, and habits that make tests lie, as checks on one file's text.

For all code: functions of at most 60 lines, files of at most 500, no notes of unfinished work. For tests besides: none
is skipped or expected to fail, none sleeps (yielding to the loop with `asyncio.sleep(0)` is no sleep), and each shows
where it asserts: by `assert` or `pytest.raises`, or by a call of a helper whose name begins with `check` or `assert`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 500

UNFINISHED_WORDS = tuple(first + last for first, last in (("TO", "DO"), ("FIX", "ME"), ("XX", "X"), ("HA", "CK")))

_UNFINISHED = re.compile(rf"\b(?:{'|'.join(UNFINISHED_WORDS)})\b")
_ASSERTING = ("check", "assert", "raises", "fnmatch_lines")
_SKIPPING = {"skip", "skipif", "xfail", "importorskip"}


def untidy(name: str, text: str, *, is_test: bool) -> list[str]:
    """One line per breach in a file of any kind; what needs a syntax tree is checked in Python files only."""
    lines = text.splitlines()
    found = [f"{name}:{number}: unfinished work" for number, line in enumerate(lines, 1) if _UNFINISHED.search(line)]
    if len(lines) > MAX_FILE_LINES:
        found.append(f"{name}: {len(lines)} lines, allowed {MAX_FILE_LINES}")
    if name.endswith(".py"):
        nodes = list(ast.walk(ast.parse(text)))
        found += _long_functions(name, nodes)
        found += _lying_tests(name, nodes) if is_test else []
    return found


def _long_functions(name: str, nodes: Sequence[ast.AST]) -> list[str]:
    return [
        f"{name}:{node.lineno}: {node.name} has {length} lines, allowed {MAX_FUNCTION_LINES}"
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]


def _lying_tests(name: str, nodes: Sequence[ast.AST]) -> list[str]:
    found = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            found += [] if _asserts(node) else [f"{name}:{node.lineno}: {node.name} shows no assertion"]
        if isinstance(node, ast.Attribute) and node.attr in _SKIPPING and _root(node) == "pytest":
            found.append(f"{name}:{node.lineno}: pytest {node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module == "pytest":
            found += [f"{name}:{node.lineno}: pytest {alias.name}" for alias in node.names if alias.name in _SKIPPING]
        elif isinstance(node, ast.Call) and _called(node) == "sleep" and not _is_zero(node):
            found.append(f"{name}:{node.lineno}: sleeps")
    return found


def _asserts(test: ast.AST) -> bool:
    return any(
        isinstance(node, ast.Assert)
        or (isinstance(node, ast.Call) and (_called(node) or "").lstrip("_").startswith(_ASSERTING))
        for node in ast.walk(test)
    )


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _called(node: ast.Call) -> str | None:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)


def _is_zero(node: ast.Call) -> bool:
    return len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
