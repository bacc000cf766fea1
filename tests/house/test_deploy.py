"""What deploy/ has for containers: the image's steps run here without a daemon, and the manifest is one that KubeRay
takes.

An image is its files and its RUN steps. The steps that need root and a network (Debian's packages, uv itself) are
compared with what the Makefile installs. The others run as they are written, in a folder that has exactly the files
that COPY gives them, on an environment that borrows the packages of this one. Only the installation of the lock is a
dry run: this environment has been installed from the same lock, so a step that would install or remove anything else
fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
LOCK = (ROOT / "requirements.lock").read_text()
AS_ROOT = ("apt-get ", "pip install ")


class Step(NamedTuple):
    """An instruction of a Dockerfile, with its arguments on one line."""

    instruction: str
    text: str


def steps() -> list[Step]:
    text = re.sub(r"\\\n", " ", DOCKERFILE.read_text())
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [Step(*line.split(maxsplit=1)) for line in lines]


def copied(folder: Path) -> None:
    """Copies what the COPY steps name to a folder, as far as `.dockerignore` lets it."""
    patterns = DOCKERFILE.with_suffix(".dockerignore").read_text().split()
    for _, text in (step for step in steps() if step.instruction == "COPY"):
        *sources, target = text.split()
        for source in sources:
            assert f"!{source}" in patterns, f"{source} is not sent to the daemon"
            into = folder / target / (source if target == "./" else "")
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, into, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / source, into)


def keep_installed(lock: Path) -> None:
    """Leaves of a lock what this environment has, in any version: what is missing could only come from a network."""
    installed = {re.sub(r"[-_.]+", "-", it.name).lower() for it in distributions()}
    entries = re.split(r"^(?=[a-z0-9])", lock.read_text(), flags=re.MULTILINE)
    kept = [entry for entry in entries if re.split(r"[=\[ ;]", entry)[0] in installed]
    assert len(kept) > len(entries) // 2
    lock.write_text("".join(kept))


def uv() -> str:
    """The uv that made this environment (Makefile)."""
    own = Path(sys.prefix) / "tools" / "bin" / "uv"
    found = shutil.which("uv") or str(own)
    assert Path(found).exists(), found
    return found


def test_the_steps_of_the_image_run(tmp_path: Path) -> None:
    image, venv = tmp_path / "image", tmp_path / "venv"
    image.mkdir()
    copied(image)
    keep_installed(image / "requirements.lock")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").symlink_to(uv())
    environment = {"HOME": str(tmp_path), "UV_OFFLINE": "1", "TMPDIR": str(tmp_path)}
    for _, text in (step for step in steps() if step.instruction == "ENV"):
        name, _, value = text.partition("=")
        environment[name] = value.replace("/home/ray/venv", str(venv))
    environment["PATH"] = environment["PATH"].replace("$PATH", f"{tools}:{os.environ['PATH']}")
    ran = []
    for _, command in (step for step in steps() if step.instruction == "RUN"):
        if command.startswith(AS_ROOT):
            continue
        where, shown = dict(environment), command
        if command.startswith("uv venv"):
            where["UV_PYTHON"] = sys.executable
        elif command.startswith("uv pip sync"):
            where["VIRTUAL_ENV"], shown = sys.prefix, command.replace("--quiet", "--dry-run")
        done = subprocess.run(["sh", "-c", shown], cwd=image, env=where, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        ran.append((command, done.stdout + done.stderr))
        if command.startswith("uv venv"):
            borrowed = Path(sysconfig.get_path("purelib", vars={"base": str(venv)})) / "borrowed.pth"
            borrowed.write_text(sysconfig.get_path("purelib"))
    changes = [line for line in ran[1][1].splitlines() if re.match(r" [+~-] ", line)]
    assert [line for line in changes if "isray" not in line] == [], "the lock is not what this environment has"
    assert re.search(r"^isray \d", ran[-1][1], re.MULTILINE)
    assert (venv / "bin" / "isray").exists()


def test_the_image_has_the_tools_of_the_makefile_and_the_python_of_the_project() -> None:
    [base] = [step.text for step in steps() if step.instruction == "FROM"]
    project = (ROOT / "pyproject.toml").read_text()
    assert f'Programming Language :: Python :: {base.partition(":")[2].partition("-")[0]}"' in project
    privileged = [step.text for step in steps() if step.instruction == "RUN" and step.text.startswith(AS_ROOT)]
    assert privileged[0].startswith("apt-get update ")
    assert privileged[0].endswith("rm -rf /var/lib/apt/lists/*")
    [wanted] = {word for word in shlex.split(privileged[1]) if word.startswith("uv>")}
    assert f"'{wanted}'" in (ROOT / "Makefile").read_text()
    order = [step.instruction for step in steps()]
    assert order.index("USER") < order.index("WORKDIR") < order.index("COPY")
    assert [step.text for step in steps()].index(privileged[1]) < order.index("USER")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Quantity = Annotated[str, Field(pattern=r"^\d+(m|Ki|Mi|Gi)?$")]


class KeyRef(Strict):
    name: Name
    key: str


class ValueFrom(Strict):
    secretKeyRef: KeyRef


class Env(Strict):
    name: str
    value: str | None = None
    valueFrom: ValueFrom | None = None


class Port(Strict):
    name: Annotated[str, Field(max_length=15)]
    containerPort: Annotated[int, Field(ge=1, le=65_535)]


class Resources(Strict):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


class Mount(Strict):
    name: Name
    mountPath: Annotated[str, Field(pattern="^/")]


class Container(Strict):
    name: Name
    image: str
    imagePullPolicy: Literal["IfNotPresent", "Always", "Never"]
    env: list[Env]
    ports: list[Port]
    resources: Resources
    volumeMounts: list[Mount] = []


class Volume(Strict):
    name: Name
    emptyDir: dict[str, str]


class PodSpec(Strict):
    containers: Annotated[list[Container], Field(min_length=1)]
    nodeSelector: dict[str, str] = {}
    volumes: list[Volume] = []


class Template(Strict):
    spec: PodSpec


class HeadGroup(Strict):
    rayStartParams: dict[str, str]
    template: Template


class WorkerGroup(Strict):
    groupName: Name
    replicas: int
    minReplicas: int
    maxReplicas: int
    labels: dict[str, str]
    rayStartParams: dict[str, str]
    template: Template


class Spec(Strict):
    rayVersion: str
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup]


class Metadata(Strict):
    name: Name


class RayCluster(Strict):
    """The fields of KubeRay's RayCluster (`ray.io/v1`) that the manifest uses, with what is required of them."""

    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: Spec


@pytest.fixture(scope="module")
def manifest() -> RayCluster:
    return RayCluster.model_validate(yaml.safe_load((ROOT / "deploy" / "kuberay.yaml").read_text()))


def test_the_manifest_is_a_ray_cluster_of_the_installed_version(manifest: RayCluster) -> None:
    assert f"ray=={manifest.spec.rayVersion} " in LOCK
    groups = [manifest.spec.headGroupSpec, *manifest.spec.workerGroupSpecs]
    options = ray_start_options()
    for group in groups:
        assert {f"--{name}" for name in group.rayStartParams} <= options
        [container] = group.template.spec.containers
        assert container.image == "isray"
        assert {volume.name for volume in group.template.spec.volumes} == {it.name for it in container.volumeMounts}
        assert container.resources.requests == container.resources.limits
        assert [bool(env.value) + (env.valueFrom is not None) for env in container.env] == [1] * len(container.env)


def ray_start_options() -> set[str]:
    """The options of Ray's command line, read from its source: to import it takes seconds."""
    found = find_spec("ray")
    assert found is not None
    assert found.origin is not None
    source = (Path(found.origin).parent / "scripts" / "scripts.py").read_text()
    return set(re.findall(r'^    "(--[a-z-]+)"', source, re.MULTILINE))


def test_all_ray_nodes_have_the_same_authentication_and_every_rack_has_a_group(manifest: RayCluster) -> None:
    workers = manifest.spec.workerGroupSpecs
    pods = [manifest.spec.headGroupSpec.template.spec, *(group.template.spec for group in workers)]
    assert len({str(pod.containers[0].env) for pod in pods}) == 1
    assert ("RAY_AUTH_MODE", "token") in [(env.name, env.value) for env in pods[0].containers[0].env]
    racks = [group.labels["rack"] for group in workers]
    assert len(set(racks)) == len(racks) == 3
    assert [group.groupName for group in workers] == [f"rack-{rack}" for rack in racks]
    assert all(group.minReplicas == group.replicas == group.maxReplicas for group in workers), (
        "brokers have a place each"
    )


def test_a_field_that_kuberay_does_not_know_is_noticed() -> None:
    text = (ROOT / "deploy" / "kuberay.yaml").read_text()
    document: dict[str, Any] = yaml.safe_load(text)
    document["spec"]["workerGroupSpecs"][0]["rayStartParam"] = {}
    with pytest.raises(ValueError, match="rayStartParam"):
        RayCluster.model_validate(document)
