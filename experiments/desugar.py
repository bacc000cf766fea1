"""What the compiled build compiles (`setup.py`): the sources, with what mypyc cannot bind spelled out.

mypyc makes C structs of classes, and C calls of calls between compiled functions. Three things that the sources are
full of it leaves to the interpreter, and each costs more than what stands around it:

- the `__init__` that `@dataclass` makes. Here each dataclass is given one that does the same. `frozen` goes, since it
  forbids assignments in that one too, and `unsafe_hash` keeps the hash that comes with it: nobody is stopped from
  changing such a value in a compiled build, and nothing does, since the sources stop it;
- a constant of a module, or a name that is imported from a module that is not compiled (a message, a function of the
  standard library): looked up by name in a dict each time. Here each is a `Final` of the module that uses it;
- a member of an enumeration, looked up in two dicts. Here it is a `Final` too.

The text is for mypyc alone; its lines are not those of the sources. That both do the same is what `make compiled`
compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_FACTORIES = {"dict": "{}", "list": "[]", "set": "set()"}
_KEPT = ("__future__", "typing", "collections.abc", "dataclasses", "enum")
"""What is imported from these mypyc knows, or is of no use within functions."""


def enumerations(tree: ast.Module) -> set[str]:
    """The names of the enumerations that a module defines."""
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {node.name for node in classes if any(ast.unparse(base).endswith("Enum") for base in node.bases)}


def desugared(source: str, compiled: Collection[str], enums: Collection[str]) -> str:
    """The text of a module. `compiled` are the names of the modules that are compiled with it, `enums` those of all
    enumerations.
    """
    tree = ast.parse(source)
    _give_inits(tree)
    _fix_constants(tree)
    foreign = _foreign_names(tree, compiled)
    binder = _Binder(foreign, {name for name in enums if name in _imported(tree)})
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            binder.bind(node)
    place = max(place for place, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)) + 1
    bound = [f"{alias}: Final = {text}" for text, alias in binder.bound.items()]
    tree.body[place:place] = ast.parse("\n".join(["from typing import Final", *bound])).body
    return ast.unparse(tree) + "\n"


# -- dataclasses -------------------------------------------------------------------------------------------------------


def _give_inits(tree: ast.Module) -> None:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.bases:
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "dataclass":
                node.body.append(_init_of(node))
                for option in decorator.keywords:
                    option.arg = "unsafe_hash" if option.arg == "frozen" else option.arg


def _init_of(node: ast.ClassDef) -> ast.stmt:
    parameters, lines = ["self"], []
    for each in node.body:
        if not isinstance(each, ast.AnnAssign) or "ClassVar" in ast.unparse(each.annotation):
            continue
        name, annotation = ast.unparse(each.target), ast.unparse(each.annotation)
        factory = _factory(each.value)
        if factory:
            parameters.append(f"{name}: {annotation} | None = None")
            lines.append(f"self.{name} = {factory} if {name} is None else {name}")
            continue
        default = "" if each.value is None else f" = {ast.unparse(each.value)}"
        parameters.append(f"{name}: {annotation}{default}")
        lines.append(f"self.{name} = {name}")
    if any(isinstance(each, ast.FunctionDef) and each.name == "__post_init__" for each in node.body):
        lines.append("self.__post_init__()")
    body = "\n    ".join(lines or ["pass"])
    return ast.parse(f"def __init__({', '.join(parameters)}) -> None:\n    {body}").body[0]


def _factory(value: ast.expr | None) -> str:
    """What a field without a default is made by, empty if it has a default or must be given."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "field":
        return ""
    text = ast.unparse(next(option.value for option in value.keywords if option.arg == "default_factory"))
    return _FACTORIES.get(text, f"({text})()")


# -- names -------------------------------------------------------------------------------------------------------------


def _fix_constants(tree: ast.Module) -> None:
    for place, node in enumerate(tree.body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, annotation = node.targets[0], "Final"
        elif isinstance(node, ast.AnnAssign) and node.value is not None and ast.unparse(node.annotation) != "Final":
            target, annotation = node.target, f"Final[{ast.unparse(node.annotation)}]"
        else:
            continue
        if isinstance(target, ast.Name) and _CONSTANT.fullmatch(target.id):
            assert node.value is not None
            tree.body[place] = ast.parse(f"{target.id}: {annotation} = {ast.unparse(node.value)}").body[0]


def _imported(tree: ast.Module) -> dict[str, str]:
    """Module by name, of names that are imported from modules."""
    found = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: node.module or "" for node in found for alias in node.names}


def _foreign_names(tree: ast.Module, compiled: Collection[str]) -> set[str]:
    modules = {*compiled, *_KEPT}
    return {
        name
        for name, module in _imported(tree).items()
        if module not in modules and f"{module}.{name}" not in modules
    }


@dataclass(slots=True)
class _Binder(ast.NodeTransformer):
    """Replaces names and members within functions; `bound` says by what."""

    foreign: Collection[str]
    enums: Collection[str]
    bound: dict[str, str] = field(default_factory=dict)
    _own: set[str] = field(default_factory=set)

    def bind(self, function: ast.FunctionDef) -> None:
        self._own = set(_names_bound_in(function))
        function.body = [self.visit(node) for node in function.body]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.value = None if node.value is None else self.visit(node.value)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.body = [self.visit(each) for each in node.body]
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass", "cast"):
            kept = _TYPE_PLACE[node.func.id]
            node.args = [arg if place == kept else self.visit(arg) for place, arg in enumerate(node.args)]
            return node
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in self.enums and owner.id not in self._own and node.attr.isupper():
            return self._alias(f"{owner.id}.{node.attr}")
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in self.foreign and node.id not in self._own:
            return self._alias(node.id)
        return node

    def _alias(self, text: str) -> ast.Name:
        alias = self.bound.setdefault(text, f"_bound_{text.replace('.', '_')}")
        return ast.Name(alias, ast.Load())


_TYPE_PLACE = {"isinstance": 1, "issubclass": 1, "cast": 0}
"""Where the arguments of these are types, which the type checker wants to see as such."""


def _names_bound_in(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
