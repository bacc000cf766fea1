"""Java properties files: every form that `java.util.Properties.load` reads, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.support.errors import InputError
from experiments.support.properties import parse_properties, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1\nb: 2\nc 3\nd\t=\t4\ne", {"a": "1", "b": "2", "c": "3", "d": "4", "e": ""}),
        ("  a = b = c  \r\nd=\re::f", {"a": "b = c", "d": "", "e": ":f"}),
        ("# a=1\n  ! b=2 \\\nc=#3\n\n \f\n", {"c": "#3"}),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\n# 2\nb=\\\n\nc=\\", {"a": "1# 2", "b": "", "c": ""}),
        ("\\\n# comment\n\\\na=1", {"a": "1"}),
        ("path=c:\\\\logs\\\\\nb=1", {"path": "c:\\logs\\", "b": "1"}),
        (r"a\=b\:c\ d=\q\"", {"a=b:c d": 'q"'}),
        (r"tab=x\ty" "\nnl=x\\ny\\rz\\fw", {"tab": "x\ty", "nl": "x\ny\rz\fw"}),
        (r"\u0061=\u00e9\uD83D\uDE00\\u0061", {"a": "é😀\\u0061"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=x\x0bx\u2028\x85y", {"a": "x\x0bx\u2028\x85y"}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text, "f") == expected


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a=1\n=x", "f: line 2: found '=x'; allowed: name=value"),
        ("a=\\\n  b\n: x", "f: line 3: found ': x'; allowed: name=value"),
        (r"a=\u00g0", r"f: line 1: found '\\u00g0'; allowed: \u and four hexadecimal digits"),
        (r"a=\uD83D", r"f: line 1: found '\\uD83D'; allowed: the two halves of a character beyond \uFFFF together"),
    ],
)
def test_what_is_no_property_is_refused_with_its_line(text: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_properties(text, "f")
    assert str(caught.value) == line


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"))))
def test_everything_that_is_escaped_comes_back(properties: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        units = text.encode("utf-16-be").hex()
        return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))

    text = "\n".join(f"{escaped(name)}={escaped(value)}" for name, value in properties.items())
    assert parse_properties(text, "f") == {name: value.strip() for name, value in properties.items()}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "iso-8859-1"])
def test_a_file_may_be_utf_8_or_iso_8859_1(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "f.properties"
    path.write_text("# für\nname=é\n", encoding=encoding)
    assert read_properties(path) == {"name": "é"}


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.properties"
    with pytest.raises(InputError, match="No such file or directory; allowed: a readable text file"):
        read_properties(path)
    path.write_bytes(b"a=\0")
    with pytest.raises(InputError, match="found a zero byte; allowed: a readable text file"):
        read_properties(path)
