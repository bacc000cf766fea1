"""cluster.yaml is what `ray up` accepts, by Ray's own preparation and schema, and starts every node in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).parents[2]
Config = dict[str, Any]


@pytest.fixture
def config() -> Config:
    return yaml.safe_load((ROOT / "cluster.yaml").read_text())


def test_ray_accepts_it(config: Config) -> None:
    prepared = prepare_config(config)
    validate_config(prepared)
    (node_type,) = prepared["available_node_types"].values()
    assert node_type["min_workers"] == len(config["provider"]["worker_ips"]) == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [("head_start_ray_command", []), ("setup_commands", "make venv"), ("provider", {"head_ip": "x"})],
)
def test_rays_schema_refuses_a_wrong_field(config: Config, field: str, value: object) -> None:
    prepared = prepare_config(config)
    prepared[field] = value
    with pytest.raises(jsonschema.ValidationError):
        validate_config(prepared)


def test_nodes_install_from_the_lock(config: Config) -> None:
    assert config["file_mounts"]["~/isray"] == "."
    assert config["setup_commands"] == ["make -C ~/isray venv"]
    assert {".git", ".venv", "out"} <= set(config["rsync_exclude"])


@pytest.mark.parametrize("commands", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_starts_authenticated_in_the_projects_environment(config: Config, commands: str) -> None:
    start = config[commands][-1]
    assert "RAY_AUTH_MODE=token" in start
    assert "RAY_AUTH_TOKEN_PATH=~/.ray/auth_token" in start
    assert all("PATH=~/isray/.venv/bin:$PATH" in command for command in config[commands])
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert "--dashboard-host=0.0.0.0" not in start
