"""One-line mutations of Python source: where they are possible, and the source with one of them.

Mutation analysis (DeMillo, Lipton and Sayward, "Hints on test data selection", 1978): programmers write programs that
are nearly right, so tests that notice every small change notice most defects. Five operators:

- `comparison`: a comparison is negated, `and` and `or` change places, a `not` is left out;
- `boundary`: `<` and `<=`, `>` and `>=`, `min` and `max` change places;
- `constant`: an integer grows by one, a truth value is negated;
- `statement`: a call, an assignment to an attribute or element, a `raise` or an early `return` is left out;
- `argument`: two neighbouring arguments of a call change places.

A mutation of the operator `written` was written by hand: it replaces any expression or statement by another, or a
statement by several.

Only code is mutated that decides something: no annotation, decorator or base class, no text of an error. A mutation is
identified by what it changes and not by a line number, so that it still applies when lines have moved: module,
enclosing function, text of the line, operator, expression before and after, and its turn among mutations that are equal
in all of these.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import CodeType
from typing import Any

from experiments.support.errors import InputError

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds the package `protocol`."""
PROTOCOL = "protocol"
LONGEST_TEXT = 200
"""How many characters of an expression identify it."""

_Comparisons = dict[type[ast.cmpop], type[ast.cmpop]]
_NEGATED: _Comparisons = {ast.Eq: ast.NotEq, ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Is: ast.IsNot, ast.In: ast.NotIn}
_NEGATED |= {other: one for one, other in _NEGATED.items()}
_AT_THE_BOUNDARY: _Comparisons = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_EXTREMES = {"min": "max", "max": "min"}
_NOT_CODE = frozenset({"annotation", "returns", "decorator_list", "bases", "msg"})
"""Fields of syntax nodes that decide nothing at run time, or only what an error says."""
WRITTEN = "written"
_BLOCKS = ("body", "orelse", "finalbody")
_LEFT_ALONE = (ast.Import, ast.ImportFrom, ast.JoinedStr, ast.Global, ast.Nonlocal)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One mutation of a module of the protocol (`module`: its dotted name). `function` is the qualified name of the
    function or class around it, empty at the level of the module; `line` is the stripped text of the line on which the
    changed expression begins; `turn` counts from 0. One that was written by hand may leave out the line, and `before`:
    then `after` is put at the start of the function.
    """

    module: str
    function: str
    line: str
    operator: str
    before: str
    after: str
    turn: int = 0

    @property
    def change(self) -> str:
        return f"{self.operator}: `{' '.join(self.before.split())}` becomes `{' '.join(self.after.split())}`"

    def __str__(self) -> str:
        place = f" in `{self.line}`" if self.line else ""
        return f"{self.module}: {self.function}: {self.change}{place}"


@dataclass(frozen=True, slots=True)
class Site:
    """A mutation that is possible in a syntax tree: the mutation, its line number, and the node that is replaced."""

    mutation: Mutation
    line_number: int
    parent: ast.AST
    field: str
    index: int | None
    replacement: ast.AST

    def apply(self) -> None:
        """Changes the tree that the site was found in."""
        if self.index is None:
            setattr(self.parent, self.field, self.replacement)
        else:
            getattr(self.parent, self.field)[self.index] = self.replacement


def modules() -> tuple[str, ...]:
    """The dotted names of all modules of the protocol, sorted."""
    paths = sorted((ROOT / PROTOCOL).rglob("*.py"))
    return tuple(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths if path.stem != "__init__")


def path_of(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def sites(module: str, source: str) -> list[Site]:
    """All mutations that are possible in a module's source, in the order of the syntax tree."""
    return _sites(module, ast.parse(source), source)


def mutated_tree(mutation: Mutation, source: str) -> ast.Module:
    """The syntax tree of the mutation's module with the mutation in it. InputError if it does not apply."""
    tree = ast.parse(source)
    _site_of(mutation, tree, source).apply()
    return tree


def changed_codes(mutations: Sequence[Mutation]) -> dict[str, CodeType]:
    """The code of each function that these mutations of the operator `written` change, by `module:function`. InputError
    for one whose `before` its function does not have exactly once.
    """
    trees: dict[str, ast.Module] = {}
    for mutation in mutations:
        path = path_of(mutation.module)
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        tree = trees.setdefault(mutation.module, ast.parse(source))
        found = list(_written_sites(mutation, tree, source))
        if len(found) != 1:
            raise InputError("mutant", "", str(mutation), f"code that {path} has there once")
        found[0].apply()
    codes = {module: compiled(module, tree) for module, tree in trees.items()}
    return {f"{item.module}:{item.function}": _code_of(item.function, codes[item.module]) for item in mutations}


def compiled(module: str, tree: ast.Module) -> CodeType:
    """The code of a module that has this syntax tree."""
    code: CodeType = compile(ast.fix_missing_locations(tree), str(path_of(module)), "exec", dont_inherit=True)
    return code


def _code_of(function: str, code: CodeType) -> CodeType:
    inner = [item for item in code.co_consts if isinstance(item, CodeType)]
    found = next((item for item in inner if item.co_qualname == function), None)
    return found or _code_of(function, next(item for item in inner if function.startswith(f"{item.co_qualname}.")))


def line_number_of(mutation: Mutation) -> int:
    """The number of the line that the mutation changes. InputError if it does not apply to the module as it is."""
    source = path_of(mutation.module).read_text(encoding="utf-8")
    return _site_of(mutation, ast.parse(source), source).line_number


def _site_of(mutation: Mutation, tree: ast.Module, source: str) -> Site:
    is_written = mutation.operator == WRITTEN
    found = _written_sites(mutation, tree, source) if is_written else _sites(mutation.module, tree, source)
    site = next((site for site in found if site.mutation == mutation), None)
    if site is None:
        raise InputError("mutant", "", str(mutation), f"a mutation that {path_of(mutation.module)} has")
    return site


def _written_sites(mutation: Mutation, tree: ast.Module, source: str) -> Iterator[Site]:
    lines, turn, written = source.splitlines(), 0, ast.parse(mutation.after).body
    for function, parent, field, index, node in _places(tree, ""):
        if not f"{function}.".startswith(f"{mutation.function}."):
            continue
        if not mutation.before:
            is_meant = isinstance(parent, ast.FunctionDef) and (field, index) == ("body", 0)
        else:  # an expression that is a statement is meant as the statement
            is_meant = not isinstance(parent, ast.Expr) and ast.unparse(node) == mutation.before
        if not is_meant:
            continue
        number = getattr(node, "lineno")  # noqa: B009
        found = replace(mutation, line=mutation.line and lines[number - 1].strip(), turn=turn)
        turn += found.line == mutation.line
        replacement = _replacement(node, written if mutation.before else [*written, node])
        yield Site(found, number, parent, field, index, ast.copy_location(replacement, node))


def _replacement(node: ast.AST, written: list[Any]) -> ast.AST:
    """One node that does what the written statements do, in the place of a node."""
    first = written[0]
    if len(written) > 1:
        return ast.If(ast.Constant(True), written, [])
    return first.value if isinstance(node, ast.expr) and isinstance(first, ast.Expr) else first


def _sites(module: str, tree: ast.Module, source: str) -> list[Site]:
    lines = source.splitlines()
    turns: Counter[Mutation] = Counter()
    found: list[Site] = []
    for function, parent, field, index, node in _places(tree, ""):
        for operator, replacement in _changes(parent, field, node):
            number = getattr(node, "lineno")  # noqa: B009
            before, after = ast.unparse(node)[:LONGEST_TEXT], ast.unparse(replacement)[:LONGEST_TEXT]
            first = Mutation(module, function, lines[number - 1].strip(), operator, before, after)
            mutation = replace(first, turn=turns[first])
            turns[first] += 1
            found.append(Site(mutation, number, parent, field, index, ast.copy_location(replacement, node)))
    return found


def _places(parent: ast.AST, function: str) -> Iterator[tuple[str, ast.AST, str, int | None, ast.AST]]:
    """Every node below `parent` that is code, with its function, parent, field and index in that field."""
    for field, value in ast.iter_fields(parent):
        if field in _NOT_CODE:
            continue
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or isinstance(node, _LEFT_ALONE) or _is_for_types(node):
                continue
            yield function, parent, field, index, node
            if isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg == "strict"):
                continue
            inner = function
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{function}.{node.name}" if function else node.name
            yield from _places(node, inner)


def _is_for_types(node: ast.AST) -> bool:
    """Whether a statement is for type checkers only."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation)


def _changes(parent: ast.AST, field: str, node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(operator, replacement) for each mutation of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for operator, others in (("comparison", _NEGATED), ("boundary", _AT_THE_BOUNDARY)):
            if other := others.get(type(node.ops[0])):
                yield operator, ast.Compare(node.left, [other()], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "comparison", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "comparison", node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield "constant", ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _changed_calls(node)
    elif field in _BLOCKS and _can_be_left_out(parent, node):
        yield "statement", ast.Pass()


def _changed_calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node.func, ast.Name) and node.func.id in _EXTREMES:
        yield "boundary", ast.Call(ast.Name(_EXTREMES[node.func.id], ast.Load()), node.args, node.keywords)
        return
    for index, (first, second) in enumerate(pairwise(node.args)):
        if not any(isinstance(part, ast.Starred | ast.Constant) for part in (first, second)):
            args = [*node.args[:index], second, first, *node.args[index + 2 :]]
            yield "argument", ast.Call(node.func, args, node.keywords)
    for index, (one, other) in enumerate(pairwise(node.keywords)):
        if one.arg is not None and other.arg is not None and ast.dump(one.value) != ast.dump(other.value):
            pair = [ast.keyword(one.arg, other.value), ast.keyword(other.arg, one.value)]
            keywords = [*node.keywords[:index], *pair, *node.keywords[index + 2 :]]
            yield "argument", ast.Call(node.func, node.args, keywords)


def _can_be_left_out(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a statement has an effect, and its function goes on without it."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call)
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Return):
        return isinstance(parent, ast.If)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Raise)
