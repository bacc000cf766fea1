"""One-line mutations: what each operator changes, what is left alone, and how a mutation is found again."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from experiments.hunt.mutants.mutation import (
    WRITTEN,
    Mutation,
    line_number_of,
    modules,
    mutated_tree,
    path_of,
    sites,
)
from experiments.support.errors import InputError

MODULE = "protocol.log.epochs"


def changes(source: str) -> list[tuple[str, str, str]]:
    return [
        (site.mutation.operator, site.mutation.before, site.mutation.after)
        for site in sites(MODULE, source)
        if site.mutation.operator != "statement"
    ]


CHANGES: dict[str, tuple[str, list[tuple[str, str, str]]]] = {
    "below": ("a < b", [("comparison", "a < b", "a >= b"), ("boundary", "a < b", "a <= b")]),
    "at least": ("a >= b", [("comparison", "a >= b", "a < b"), ("boundary", "a >= b", "a > b")]),
    "equal": ("a == b", [("comparison", "a == b", "a != b")]),
    "none": ("a is None", [("comparison", "a is None", "a is not None")]),
    "member": ("a not in b", [("comparison", "a not in b", "a in b")]),
    "and": ("a and b", [("comparison", "a and b", "a or b")]),
    "not": ("not a", [("comparison", "not a", "a")]),
    "smallest": ("min(a, 0)", [("boundary", "min(a, 0)", "max(a, 0)"), ("constant", "0", "1")]),
    "integer": ("5", [("constant", "5", "6")]),
    "truth": ("x = True", [("constant", "True", "False")]),
    "positions": ("f(a, b)", [("argument", "f(a, b)", "f(b, a)")]),
    "keywords": ("f(a=b, c=d)", [("argument", "f(a=b, c=d)", "f(a=d, c=b)")]),
    "equal arguments": ("f(a=b, c=b)", []),
    "an annotation": ("x: Literal[5]", []),
    "a decorator": ("@cache(5)\ndef f(): ...", []),
    "a base class": ("class A(Row(5)): ...", []),
    "an error's text": ("raise ValueError(f(a, b))", []),
    "for types": ("if TYPE_CHECKING:\n    x = 5", []),
    "a string": ("x = f'{a < b}'", []),
}


@pytest.mark.parametrize(("source", "expected"), CHANGES.values(), ids=CHANGES)
def test_each_operator_changes_one_expression(source: str, expected: list[tuple[str, str, str]]) -> None:
    assert changes(source) == expected


LEFT_OUT = """
def f(a):
    'Theory.'
    a.b()
    a.c = a
    d = a
    a.e += a
    if a:
        return
    del a.g
    raise a
"""


def test_statements_with_an_effect_are_left_out() -> None:
    found = [site.mutation for site in sites(MODULE, LEFT_OUT)]
    assert [item.line for item in found] == ["a.b()", "a.c = a", "a.e += a", "return", "del a.g", "raise a"]
    assert {(item.function, item.operator, item.after) for item in found} == {("f", "statement", "pass")}
    assert "a.e += a" not in ast.unparse(mutated_tree(found[2], LEFT_OUT))


TWICE = "class A:\n    def f(self):\n        return [g(1), g(1)]\n"


def test_equal_changes_of_a_line_are_told_apart_and_outlast_moved_lines() -> None:
    first, second = (site.mutation for site in sites(MODULE, TWICE))
    assert (first.function, first.turn, second) == ("A.f", 0, replace(first, turn=1))
    moved = f"\n\nX = None\n{TWICE}"
    assert "[g(1), g(2)]" in ast.unparse(mutated_tree(second, moved))
    with pytest.raises(InputError, match=r"found protocol\.log\.epochs: A\.f"):
        mutated_tree(second, TWICE.replace("g(1), g(1)", "g(1), h(1)"))


def test_a_written_mutation_replaces_an_expression_or_a_statement() -> None:
    source = "def f(a):\n    b = a + a\n    return b\n"
    expression = Mutation(MODULE, "f", "b = a + a", WRITTEN, "a + a", "a")
    statement = Mutation(MODULE, "f", "b = a + a", WRITTEN, "b = a + a", "b = 7")
    assert ast.unparse(mutated_tree(expression, source)) == "def f(a):\n    b = a\n    return b"
    assert ast.unparse(mutated_tree(statement, source)) == "def f(a):\n    b = 7\n    return b"
    with pytest.raises(InputError, match="a mutation that"):
        mutated_tree(replace(expression, turn=1), source)


def test_every_module_has_mutations_that_differ_and_compile() -> None:
    assert len(modules()) > 100
    for module in ("protocol.broker.leader", "protocol.controller.partition_change", "protocol.log.replica_log"):
        source = path_of(module).read_text(encoding="utf-8")
        found = sites(module, source)
        assert len({site.mutation for site in found}) == len(found) > 30
        compile(mutated_tree(found[-1].mutation, source), module, "exec")
        assert line_number_of(found[0].mutation) == found[0].line_number
