"""The files of deploy/ that are made of the declarations of the metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from experiments.monitoring import dashboard, rules, scrape
from experiments.support.build import PACKAGES_FOLDER

FOLDER = PACKAGES_FOLDER / "deploy"


def rendered() -> Mapping[str, str]:
    """The text of each file, by its name."""
    return {
        "grafana-dashboard.json": dashboard.as_json(),
        scrape.RULE_FILE: rules.as_yaml(),
        "prometheus.yaml": scrape.as_yaml(),
    }


def write(folder: Path = FOLDER) -> None:
    for name, text in rendered().items():
        (folder / name).write_text(text, encoding="utf-8")
