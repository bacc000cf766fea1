"""The rewritten sources behave as the original ones: dataclasses with an explicit `__init__`, names bound once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from build_tools.desugar import rewrite
from experiments.engines.sim import network
from protocol.ids import TopicPartition
from protocol.messages.codec import decode, encode
from protocol.messages.data import ProduceResponse

pytestmark = pytest.mark.unit

HEAD = """
from __future__ import annotations
from collections import deque
from dataclasses import dataclass, field
from protocol.errors import ErrorCode
from protocol.ids import TopicPartition
"""


def run(body: str, *, compiled: tuple[str, ...] = (), enums: tuple[str, ...] = ("ErrorCode",)) -> tuple[str, dict]:
    """The rewritten text of a module, and the names that it defines."""
    text = rewrite(HEAD + body, compiled, enums)
    names: dict = {"__name__": "builtins"}
    exec(text, names)
    return text, names


def test_a_dataclass_takes_the_same_arguments() -> None:
    text, names = run("""
@dataclass(frozen=True)
class Thing:
    key: int
    name: str = "none"
    parts: list[int] = field(default_factory=list)
    turns: deque[int] = field(default_factory=lambda: deque([7]))
""")
    thing = names["Thing"]
    assert "def __init__(self, key: int, name: str='none', parts: list[int] | None=None" in text
    assert "frozen" not in text
    one, other = thing(1), thing(1)
    assert (one.key, one.name, one.parts, one.turns) == (1, "none", [], names["deque"]([7]))
    assert one == other
    assert one.parts is not other.parts
    assert replace(one, name="x") == thing(1, "x")


def test_a_dataclass_takes_the_fields_of_its_bases_first_and_keeps_its_class_variables() -> None:
    _, names = run("""
from typing import ClassVar
from protocol.events.base import PartitionTrace
@dataclass(slots=True)
class Thing(PartitionTrace):
    kind: ClassVar[str] = "thing"
    size: int
""")
    thing = names["Thing"](TopicPartition("t", 0), 1)
    assert (thing.about(), thing.size, names["Thing"].kind) == (TopicPartition("t", 0), 1, "thing")


def test_a_frozen_dataclass_keeps_its_hash() -> None:
    _, names = run("@dataclass(frozen=True)\nclass Place:\n    x: int\n    y: int = 0\n")
    assert len({names["Place"](1), names["Place"](1), names["Place"](2)}) == 2


def test_post_init_is_called() -> None:
    _, names = run(
        "@dataclass(slots=True)\nclass Twice:\n    x: int\n    def __post_init__(self) -> None:\n        self.x *= 2\n"
    )
    assert names["Twice"](4).x == 8


def test_foreign_names_are_bound_unless_a_local_name_hides_them() -> None:
    text, names = run("""
LIMIT = 3
def place(topic: str) -> object:
    return TopicPartition(topic, LIMIT)
def hidden(TopicPartition: int) -> int:
    return TopicPartition + 1
def kind(thing: object) -> bool:
    return isinstance(thing, TopicPartition)
def error(thing: object) -> bool:
    return thing is ErrorCode.NONE
""")
    assert "LIMIT: Final = 3" in text
    assert "_bound_TopicPartition: Final = TopicPartition" in text
    assert "isinstance(thing, TopicPartition)" in text
    assert "thing is _bound_ErrorCode_NONE" in text
    assert names["place"]("t") == ("t", 3)
    assert names["hidden"](1) == 2
    assert names["error"](names["ErrorCode"].NONE)


def test_names_of_compiled_modules_are_not_bound() -> None:
    text, _ = run("def place() -> object:\n    return TopicPartition('t', 0)\n", compiled=("protocol.ids",))
    assert "_bound_" not in text


def test_constant_that_is_final_already_stays_as_it_is() -> None:
    text, names = run("from typing import Final\nONE: Final[int] = 1\nTWO: int = 2\nHELD: Final = [ONE]\n")
    assert "ONE: Final[int] = 1" in text
    assert "TWO: Final[int] = 2" in text
    assert names["HELD"] == [1]


def test_each_constant_of_a_tuple_assignment_is_final() -> None:
    text, names = run("ONE, _TWO = 1, 2\ndef both() -> int:\n    return ONE + _TWO\n")
    assert "ONE: Final = 1" in text
    assert "_TWO: Final = 2" in text
    assert names["both"]() == 3


def test_a_repr_in_an_f_string_becomes_a_call() -> None:
    text, names = run("def text_of(thing: object) -> str:\n    return f'<{thing!r} {thing!s:>4}>'\n")
    assert "{repr(thing)}" in text
    assert names["text_of"]("x") == "<'x'    x>"


def test_a_union_in_isinstance_becomes_a_tuple() -> None:
    text, names = run("""
def is_word_or_number(thing: object) -> bool:
    return isinstance(thing, int | str | float)
""")
    assert "isinstance(thing, (int, str, float))" in text
    assert [names["is_word_or_number"](thing) for thing in (1, "x", 1.5, b"")] == [True, True, True, False]


def test_an_unchecked_message_is_written_with_all_its_fields() -> None:
    text, names = run("""
from protocol.messages.data import ProduceResponse
def answer(number: int) -> ProduceResponse:
    return ProduceResponse.unchecked(base_offset=7, correlation_id=number)
""")
    assert "unchecked(" not in text
    made, checked = names["answer"](3), ProduceResponse(correlation_id=3, base_offset=7)
    assert made == checked
    assert repr(made) == repr(checked)
    assert decode(encode(made)) == checked
    with pytest.raises(TypeError, match="unknown"):
        run("""
from protocol.messages.data import ProduceResponse
made = ProduceResponse.unchecked(correlation_id=3, unknown=1)
""")


def test_the_mixing_function_with_machine_integers_has_the_same_values() -> None:
    text = rewrite(Path(network.__file__).read_text(), (), ())
    names: dict = {"i64": _Word}
    exec(text[text.index("def mixed64") : text.index("@dataclass")], names)
    for value in (0, 1, 2**31, 2**62, 2**63, 2**64 - 1, 0x0123456789ABCDEF, 2**70 + 5):
        assert names["mix64"](value) == network.mix64(value)
    for seed in (0, 1, -1, 2**63 - 1, -(2**63), 0x0123456789ABCDEF, -0x0123456789ABCDEF):
        for below in (1, 2, 3, 1_000, 2**31):
            assert names["jitter"](seed, 1_234_567, below) == network.jitter(seed, 1_234_567, below)


class _Word(int):
    """A signed 64-bit integer that wraps around; `>>` is arithmetic."""

    def __new__(cls, value: int) -> _Word:
        return super().__new__(cls, (value + 2**63) % 2**64 - 2**63)

    def __add__(self, other: int) -> _Word:
        return _Word(int(self) + other)

    def __mul__(self, other: int) -> _Word:
        return _Word(int(self) * other)

    def __xor__(self, other: int) -> _Word:
        return _Word(int(self) ^ other)

    def __or__(self, other: int) -> _Word:
        return _Word(int(self) | other)

    def __lshift__(self, other: int) -> _Word:
        return _Word(int(self) << other)


def test_an_immutable_class_becomes_the_dataclass_that_it_is() -> None:
    text, names = run("""
from protocol.values import immutable
@immutable
class Thing:
    key: int
    name: str = "none"
""")
    assert "@immutable" not in text
    assert "def __init__(self, key: int, name: str='none')" in text
    thing = names["Thing"]
    assert {thing(1), thing(1), thing(1, "x")} == {thing(1), replace(thing(1), name="x")}


def test_a_base_of_classes_that_are_not_compiled_allows_that() -> None:
    text = rewrite(HEAD + "class SimCluster:\n    pass\nclass Other:\n    pass\n", (), ())
    assert "@mypyc_attr(allow_interpreted_subclasses=True)\nclass SimCluster:" in text
    assert text.count("mypyc_attr(") == 1


def test_values_that_are_pickled_are_created_with_their_fields() -> None:
    _, names = run("""
from protocol.events.base import Trace as Base
class Trace(Base):
    pass
@dataclass(slots=True)
class Thing(Trace):
    key: int
    name: str = "none"
""")
    thing = names["Thing"](3)
    assert thing.__reduce__() == (names["Thing"], (3, "none"))
