"""`isray kafka`: the releases of Apache Kafka on this machine, which `--engine kafka` and the tests run."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from experiments.cli.help import App
from experiments.cli.kafka_diff import diff
from experiments.cli.output import Json, flag, print_result, table_of
from experiments.support.releases.installed import Installed, install, installed

app = App("Releases of Apache Kafka: those on this machine, and what changed between two of them.")
app.register("diff", "isray kafka diff 4.3.1 4.4.0")(diff)


@app.register("install", "isray kafka install 4.4.0")
def install_release(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="An exact release, such as 4.4.0.")],
    archive: Annotated[bool, flag("--archive", "Also archive the classes, for which a broker is started.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch the jars of a release from Maven Central, or from the mirror in ISRAY_MAVEN_MIRROR, and check their
    checksums. What is there already is not fetched again. With an archive of the classes processes start sooner."""
    found = install(version, os.environ, "VERSION")
    if archive and not found.archive.exists():
        from experiments.engines.kafka.classes import write_archive

        write_archive(found)
    print_result(as_json, _document(found), typer.echo, f"Kafka {found.release} in {found.libs}")


@app.register("list", "isray kafka list")
def list_releases(as_json: Json = False) -> None:
    """The releases on this machine: that of KAFKA_HOME, and the installed ones."""
    found = [_document(it) for it in installed(os.environ)]
    table = table_of(("release", "jars", "MB", "folder"), ([str(value) for value in it.values()] for it in found))
    print_result(as_json, found, Console(highlight=False).print, table)


def _document(it: Installed) -> dict[str, object]:
    sizes = [jar.stat().st_size for jar in it.libs.glob("*.jar")]
    return {"release": it.release, "jars": len(sizes), "megabytes": sum(sizes) // 10**6, "libs": str(it.libs)}
