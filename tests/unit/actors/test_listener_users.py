"""Which listeners have SASL, and the users of their file."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.listener_security import sasl_of
from protocol.config import ClusterConfig, ConfigError
from protocol.features import Generation
from protocol.kafka.addresses import listener_address
from protocol.kafka.sasl import Sasl

SECURED = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}


def config_of(**configs: str) -> ClusterConfig:
    return ClusterConfig.of(Generation.KIP_966, {name.replace("_", "."): value for name, value in configs.items()})


def users(config: ClusterConfig) -> Sasl | None:
    address = listener_address(config)
    assert address is not None
    return sasl_of(address, config)


def test_a_listener_has_the_users_of_its_file(tmp_path: Path) -> None:
    assert users(config_of(listeners="PLAINTEXT://127.0.0.1:0")) is None
    file = tmp_path / "users"
    file.write_text("alice=secret\n", encoding="utf-8")
    sasl = users(config_of(**SECURED, sasl_users_file=str(file), sasl_enabled_mechanisms="PLAIN, SCRAM-SHA-256"))
    assert sasl is not None
    assert sasl.mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert sasl.has_password("alice", "secret")
    assert not sasl.has_password("alice", "Secret")


@pytest.mark.parametrize("content", [None, "", "# none\n", "alice\n"])
def test_a_file_without_users_is_refused(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "users"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"sasl.users.file: found .*; allowed: .*NAME=PASSWORD"):
        users(config_of(**SECURED, sasl_users_file=str(file)))
