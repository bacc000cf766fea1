"""Java classes of Apache Kafka's brokers and tools, from jars that Maven resolves once per machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from experiments.support.cache import cache_folder

RELEASE = "4.4.0"
WITHIN_S = 90
ARTIFACTS = (f"org.apache.kafka:kafka_2.13:{RELEASE}", f"org.apache.kafka:kafka-tools:{RELEASE}")


@pytest.fixture(scope="session")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All jars of a broker and of the tools, which Maven resolves once per machine."""
    folder = cache_folder({}) / "maven" / f"broker-{RELEASE}"
    items = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>".format(
            *artifact.split(":")
        )
        for artifact in ARTIFACTS
    )
    project = tmp_path_factory.mktemp("maven") / "pom.xml"
    project.write_text(
        f"<project><modelVersion>4.0.0</modelVersion><groupId>isray</groupId><artifactId>broker</artifactId>"
        f"<version>1</version><dependencies>{items}</dependencies></project>"
    )
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    subprocess.run(["mvn", "-q", "-B", "-f", str(project), *goal], check=True, timeout=280)
    return folder


def run_class(jars: Path, name: str, *arguments: str) -> str:
    line = ["java", "-Xmx128m", "-cp", f"{jars}/*", name, *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=WITHIN_S).stdout
