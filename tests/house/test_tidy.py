"""Project files and tests are tidy, and the checks fire on what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.tidy import MAX_FILE_LINES, MAX_FUNCTION_LINES, UNFINISHED_WORDS, untidy

ROOT = Path(__file__).parents[2]
FOLDERS = ("protocol", "actors", "experiments", "build_tools", "tests")
SUFFIXES = {".py", ".j2", ".css", ".js"}
AT_THE_TOP = ("Makefile", "cluster.yaml", "pyproject.toml", ".ci/run")


def project_files() -> list[Path]:
    code = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted(code) + [ROOT / name for name in AT_THE_TOP]


@pytest.mark.parametrize("path", project_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_file_is_tidy(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    assert untidy(name, path.read_text(encoding="utf-8"), is_test=name.startswith("tests/")) == []


def function_of(lines: int) -> str:
    return "def f():\n" + "    pass\n" * (lines - 1)


BAD = {
    "long function": function_of(MAX_FUNCTION_LINES + 1),
    "long coroutine": "async " + function_of(MAX_FUNCTION_LINES + 1),
    "long method": "class C:\n    def f(self):\n" + "        pass\n" * MAX_FUNCTION_LINES,
    "long file": "x = 1\n" * (MAX_FILE_LINES + 1),
    "unfinished": f"x = 1  # {UNFINISHED_WORDS[0]}: more\n",
    "skip": "import pytest\npytest.skip('no')\n",
    "skip mark": "import pytest\n@pytest.mark.skip\ndef f(): ...\n",
    "skipif mark": "import pytest\n@pytest.mark.skipif(True, reason='')\ndef f(): ...\n",
    "xfail mark": "import pytest\npytestmark = pytest.mark.xfail\n",
    "imported skip": "from pytest import importorskip\n",
    "sleep": "import time\ntime.sleep(1)\n",
    "imported sleep": "from time import sleep\nsleep(0.1)\n",
    "no assertion": "def test_it():\n    run()\n",
    "asyncio sleep": "import asyncio\nasync def f():\n    await asyncio.sleep(1)\n",
}

GOOD = {
    "function at the limit": function_of(MAX_FUNCTION_LINES),
    "file at the limit": "x = 1\n" * MAX_FILE_LINES,
    "yield to the loop": "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n",
    "assertion": "def test_it():\n    assert run()\n",
    "assertion of an exception": "def test_it():\n    with pytest.raises(ValueError):\n        run()\n",
    "helper that asserts": "def test_it():\n    check_run()\n",
    "helper": "def helper():\n    run()\n",
    "skip of something else": "reader.skip(3)\n",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_fires(text: str) -> None:
    assert len(untidy("bad.py", text, is_test=True)) == 1


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_is_silent(text: str) -> None:
    assert untidy("good.py", text, is_test=True) == []


def test_code_outside_tests_may_wait() -> None:
    assert untidy("host.py", BAD["sleep"], is_test=False) == []
