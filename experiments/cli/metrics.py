"""`isray metrics`: the dashboard, the rules and the scrape configuration of the exported metrics, as files for Grafana
and Prometheus. They come from the declarations of the metrics, so they fit the version that prints them.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from experiments.cli.cluster_access import OwnCluster
from experiments.cli.help import App
from experiments.cli.output import option
from experiments.engines.ray.connection import on_ray, own_cluster
from experiments.monitoring import dashboard, rules, scrape
from experiments.support.errors import InputError

Out = Annotated[Path | None, option("FILE", "Where to write it. Default: standard output.")]

app = App("A dashboard, rules and a scrape configuration for the metrics of a cluster.")


@app.register("dashboard", "isray metrics dashboard --out out/isray.json")
def print_dashboard(out: Out = None) -> None:
    """A dashboard of Grafana, as JSON to import."""
    _write(out, dashboard.as_json())


@app.register("rules", "isray metrics rules --out out/prometheus-rules.yaml")
def print_rules(out: Out = None) -> None:
    """Recording and alerting rules of Prometheus."""
    _write(out, rules.as_yaml())


@app.register("scrape-config", "isray metrics scrape-config --target 127.0.0.1:8080")
def print_scrape_config(
    out: Out = None,
    target: Annotated[
        list[str] | None, option("HOST:PORT", "A metrics port; may be repeated. Default: by service discovery.")
    ] = None,
    name: OwnCluster = None,
    discovery: Annotated[Path, option("FILE", "The file of service discovery that Ray's head writes.")] = Path(
        scrape.SERVICE_DISCOVERY
    ),
) -> None:
    """A configuration of Prometheus that scrapes the Ray nodes of a cluster."""
    if name is not None and target:
        raise InputError("--name", "", "--name with --target", "one of the two")
    for given in target or ():
        host, _, port = given.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InputError("--target", "", given, "host:port of a Ray node's metrics")
    targets = on_ray(own_cluster(name)).metrics if name is not None else tuple(target or ())
    _write(out, scrape.as_yaml(targets, PurePosixPath(discovery)))


def _write(out: Path | None, text: str) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("--out", "", str(out), f"a file that can be written ({error.strerror})") from error
