"""Where isray keeps what it computes once."""

from __future__ import annotations

from pathlib import Path

from experiments.support.cache import cache_folder


def test_the_cache_is_in_the_folder_that_the_environment_names_or_at_home() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/isray")
    assert cache_folder({"XDG_CACHE_HOME": ""}) == Path.home() / ".cache" / "isray"
    assert cache_folder({}) == Path.home() / ".cache" / "isray"
