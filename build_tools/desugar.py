"""What the compiled build compiles (`setup.py`): the sources, with what mypyc cannot bind spelled out.

mypyc makes C structs of classes, and C calls of calls between compiled functions. Some things that the sources are
full of it leaves to the interpreter, and each costs more than what stands around it:

- the `__init__` that `@dataclass` makes. Here each dataclass is given one that does the same. `frozen` goes, since it
  forbids assignments in that one too, and `unsafe_hash` keeps the hash that comes with it: nobody is stopped from
  changing such a value in a compiled build, and nothing does, since the sources stop it;
- a constant of a module, or a name that is imported from a module that is not compiled (a message, a function of the
  standard library): looked up by name in a dict each time. Here each is a `Final` of the module that uses it;
- a member of an enumeration, looked up in two dicts. Here it is a `Final` too;
- a constructor of messages that `trusted` makes while the program runs. Here it is a function that does the same;
- `!r` in a formatted text, which calls the general formatting. Here it is a call of `repr`;
- a union of types that `isinstance` is asked for, made anew each time. Here it is a tuple;
- arithmetic on 64 bits without a sign, done on long integers. Here `mix64` and `jitter` do it in machine words.

The text is for mypyc alone; its lines are not those of the sources. That both do the same is what `make compiled`
compares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib import import_module

_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
_FACTORIES = {"dict": "{}", "list": "[]", "set": "set()"}
_KEPT = ("__future__", "typing", "collections.abc", "dataclasses", "enum")
"""What is imported from these mypyc knows, or is of no use within functions."""
_IN_WORDS = {
    "mix64": """
def mixed64(value: i64) -> i64:
    mixed: i64 = value + -0x61C8864680B583EB
    mixed = (mixed ^ ((mixed >> 30) & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return mixed ^ ((mixed >> 31) & 0x1FFFFFFFF)
def mix64(value: int) -> int:
    mixed: i64 = mixed64((i64((value >> 32) & 0xFFFFFFFF) << 32) | i64(value & 0xFFFFFFFF))
    return int(mixed) if mixed >= 0 else int(mixed) + 0x10000000000000000
""",
    "jitter": """
def jitter(seed: int, now_ms: int, below: int) -> int:
    mixed: i64 = mixed64(i64(seed) ^ i64(now_ms))
    limit: i64 = i64(below)
    high: i64 = (mixed >> 32) & 0xFFFFFFFF
    low: i64 = mixed & 0xFFFFFFFF
    return int(((high % limit) * (0x100000000 % limit) + low) % limit)
""",
}
"""Functions in the words of the machine, by name. Python is compiled to let these wrap around."""


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
    _make_constructors(tree)
    _use_words(tree)
    _fix_constants(tree)
    foreign = _foreign_names(tree, compiled)
    binder = _Binder(foreign, {name for name in enums if name in _imported(tree)})
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            binder.bind(node)
    bound = [f"{alias}: Final = {text}" for text, alias in binder.bound.items()]
    _import(tree, "from typing import Final", *bound)
    return ast.unparse(tree) + "\n"


def _import(tree: ast.Module, *lines: str) -> None:
    """Puts lines behind the imports."""
    place = max(place for place, node in enumerate(tree.body) if isinstance(node, ast.Import | ast.ImportFrom)) + 1
    tree.body[place:place] = ast.parse("\n".join(lines)).body


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


# -- constructors of messages, and words -------------------------------------------------------------------------------


def _make_constructors(tree: ast.Module) -> None:
    """Writes a function in place of each `NAME: Final = trusted(Model)`."""
    imported = _imported(tree)
    for node in list(tree.body):
        value = node.value if isinstance(node, ast.AnnAssign) else None
        if not (
            isinstance(node, ast.AnnAssign) and isinstance(value, ast.Call) and ast.unparse(value.func) == "trusted"
        ):
            continue
        place = tree.body.index(node)
        name, model = ast.unparse(node.target), ast.unparse(value.args[0])
        tree.body[place : place + 1] = ast.parse(_constructor(name, model, imported[model])).body
        _import(tree, "from typing import Any", "from protocol.messages.making import maker")


def _constructor(name: str, model: str, module: str) -> str:
    lines, parameters, values = [f"{name}_make: Final[Any] = maker({model})"], [], []
    for field_name, found in getattr(import_module(module), model).model_fields.items():
        default = f"{name}_{field_name}"
        if not found.is_required():
            lines.append(f"{default}: Final[Any] = {model}.model_fields[{field_name!r}].default")
        parameters.append(f"{field_name}: Any" + ("" if found.is_required() else f" = {default}"))
        values.append(field_name)
    return "\n".join(
        [
            *lines,
            f"def {name}(*, {', '.join(parameters)}) -> {model}:",
            f"    return {name}_make({', '.join(values)})",
        ]
    )


def _use_words(tree: ast.Module) -> None:
    for node in list(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name in _IN_WORDS:
            place = tree.body.index(node)
            tree.body[place : place + 1] = ast.parse(_IN_WORDS[node.name]).body
            _import(tree, "from typing import TYPE_CHECKING", "if TYPE_CHECKING:\n    from mypy_extensions import i64")


# -- names -------------------------------------------------------------------------------------------------------------


def _fix_constants(tree: ast.Module) -> None:
    tree.body = [single for node in tree.body for single in _singly(node)]
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


def _singly(node: ast.stmt) -> list[ast.stmt]:
    """`A, B = 1, 2` as two statements, where none of the values can be of a name that it gives."""
    if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Tuple):
        value = node.value
        if isinstance(value, ast.Tuple) and all(isinstance(each, ast.Constant) for each in value.elts):
            pairs = zip(target.elts, value.elts, strict=True)
            return [ast.Assign([name], each, lineno=node.lineno) for name, each in pairs]
    return [node]


def _imported(tree: ast.Module) -> dict[str, str]:
    """Module by name, of names that are imported from modules."""
    found = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: node.module or "" for node in found for alias in node.names}


def _foreign_names(tree: ast.Module, compiled: Collection[str]) -> set[str]:
    modules = {*compiled, *_KEPT}
    return {
        name for name, module in _imported(tree).items() if module not in modules and f"{module}.{name}" not in modules
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
            types = node.args[kept] if node.func.id == "cast" else _alternatives(node.args[kept])
            node.args = [types if place == kept else self.visit(arg) for place, arg in enumerate(node.args)]
            return node
        return self.generic_visit(node)

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        if node.conversion == ord("r") and node.format_spec is None:
            node.conversion = -1
            node.value = ast.Call(ast.Name("repr", ast.Load()), [node.value], [])
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


def _alternatives(types: ast.expr) -> ast.expr:
    """`A | B` as the tuple of both."""
    operands = list(_operands(types))
    return ast.Tuple(operands, ast.Load()) if len(operands) > 1 else types


def _operands(types: ast.expr) -> Iterator[ast.expr]:
    if isinstance(types, ast.BinOp) and isinstance(types.op, ast.BitOr):
        yield from _operands(types.left)
        yield from _operands(types.right)
    else:
        yield types


_TYPE_PLACE = {"isinstance": 1, "issubclass": 1, "cast": 0}
"""Where the arguments of these are types, which the type checker wants to see as such."""


def _names_bound_in(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
