"""The scripts of a page are bundled once, and a damaged copy of them is not used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import vl_convert

from experiments.studies.report.charts import library as scripts

BUNDLE = "window.vegaEmbed = 'é';\nnext line\n"


class Bundler:
    """Stands for vl-convert, which takes seconds of processor time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, snippet: str) -> str:
        assert snippet == scripts.SNIPPET
        self.calls += 1
        return BUNDLE


@pytest.fixture
def bundler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundler:
    found = Bundler()
    monkeypatch.setattr(vl_convert, "javascript_bundle", found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def read() -> str:
    """As another process reads it: `library` remembers its text."""
    uncached: Callable[[], str] = scripts.library.__wrapped__
    return uncached()


def test_the_second_process_reads_what_the_first_has_bundled(bundler: Bundler) -> None:
    assert [read(), read()] == [BUNDLE, BUNDLE]
    assert bundler.calls == 1


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:-1], lambda text: b"", lambda text: text.replace(b"next", b"last"), lambda text: text[1:]],
    ids=["cut off", "empty", "changed", "without a begin"],
)
def test_a_damaged_copy_is_made_again(bundler: Bundler, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    read()
    (file,) = (tmp_path / "isray").iterdir()
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert read() == BUNDLE
    assert bundler.calls == 2
    assert file.read_bytes() == whole


def test_without_a_place_to_write_each_process_bundles(bundler: Bundler, tmp_path: Path) -> None:
    (tmp_path / "isray").write_text("a file where the folder would be")
    assert [read(), read()] == [BUNDLE, BUNDLE]
    assert bundler.calls == 2
