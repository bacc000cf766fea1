"""SASL at a listener: the mechanisms against the examples of their RFCs and a client written from the RFC, and what a
connection may do before it is authenticated.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from random import Random

import pytest

from protocol.config import ConfigError
from protocol.errors import ErrorCode
from protocol.kafka.sasl import MECHANISMS, Sasl, users_of
from protocol.messages.connections import ClientBytes
from tests.unit.protocol.kafka.kafka_bench import HOST, KafkaBench, one_topic
from tests.unit.protocol.node_helpers import config_of

HANDSHAKE, AUTHENTICATE = 17, 36
USERS = {"alice": "secret", "a,b=c": "x", "user": "pencil"}


def bench_with(mechanisms: tuple[str, ...] = MECHANISMS, **configs: object) -> KafkaBench:
    sasl = Sasl(USERS, Random(3).randbytes, mechanisms)
    return KafkaBench(config_of(**configs), sasl=sasl).run(*one_topic()).connect()


def shake(bench: KafkaBench, mechanism: str, version: int = 1) -> int:
    return bench.ask(HANDSHAKE, version, {"mechanism": mechanism}).error_code


class ScramClient:
    """The client's side of RFC 5802, section 3."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str = "rOprNGfwEbeRWgbNEkqO") -> None:
        self.hash = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
        self.password = password
        self.bare = f"n={user},r={nonce}"
        self.first = f"n,,{self.bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        nonce, salt, iterations = (part[2:] for part in server_first.decode().split(","))
        salted = hashlib.pbkdf2_hmac(self.hash, self.password.encode(), b64decode(salt), int(iterations))
        client_key = hmac.digest(salted, b"Client Key", self.hash)
        stored_key = hashlib.new(self.hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}"
        message = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = hmac.digest(stored_key, message, self.hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self.hash)
        self.verifier = b"v=" + b64encode(hmac.digest(server_key, message, self.hash))
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


def test_scram_sha_256_against_the_example_of_rfc_7677() -> None:
    class OfRfc(Sasl):
        def nonce(self) -> str:
            return "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"

    server = OfRfc(USERS, lambda count: b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")).start("SCRAM-SHA-256")
    next(server)
    first = server.send(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    with pytest.raises(StopIteration) as end:
        server.send(b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert end.value.value == ("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_client_of_scram_is_authenticated(mechanism: str, version: int) -> None:
    bench = bench_with()
    assert shake(bench, mechanism) == ErrorCode.NONE
    client = ScramClient(mechanism, "a=2Cb=3Dc", "x")
    server_first = bench.ask(AUTHENTICATE, version, {"auth_bytes": client.first})
    final = bench.ask(AUTHENTICATE, version, {"auth_bytes": client.final(server_first.auth_bytes)})
    assert (final.error_code, final.auth_bytes) == (ErrorCode.NONE, client.verifier)
    [principal] = [it.client.principal for it in bench.both.listener.connections]
    assert principal == "User:a,b=c"
    again = bench.ask(AUTHENTICATE, version, {"auth_bytes": b""})
    assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_the_principal_reaches_the_authorizer() -> None:
    bench = bench_with(authorizer_class_name="standard", super_users="User:alice")
    shake(bench, "PLAIN")
    assert bench.ask(AUTHENTICATE, 2, {"auth_bytes": b"\0alice\0secret"}).error_code == ErrorCode.NONE
    fields = {"topics": [{"name": "t"}], "include_topic_authorized_operations": False}
    fields["include_cluster_authorized_operations"] = False
    assert bench.ask(3, 9, fields).topics[0].error_code == ErrorCode.NONE
    bench.connect(2)
    bench.ask(HANDSHAKE, 1, {"mechanism": "PLAIN"}, connection=2)
    bench.ask(AUTHENTICATE, 2, {"auth_bytes": b"user\0user\0pencil"}, connection=2)
    assert bench.ask(3, 9, fields, connection=2).topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    "token",
    [b"\0alice\0wrong", b"\0bob\0secret", b"user\0alice\0secret", b"alice", b"", b"\0\0\0", b"\xff\0a\0b"],
)
def test_wrong_credentials_of_plain_end_the_connection(token: bytes) -> None:
    bench = bench_with()
    shake(bench, "PLAIN")
    failed = bench.ask(AUTHENTICATE, 1, {"auth_bytes": token})
    assert failed.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert failed.error_message.startswith("authentication failed: ")
    assert 1 in bench.closed


@pytest.mark.parametrize(
    "first",
    [b"", b"n,,n=bob,r=abc", b"p=tls-unique,,n=user,r=abc", b"n,a=x,n=user,r=abc", b"n,,n=user", b"n,,m=1,n=user,r=a"],
)
def test_wrong_first_tokens_of_scram_end_the_connection(first: bytes) -> None:
    bench = bench_with()
    shake(bench, "SCRAM-SHA-256")
    assert bench.ask(AUTHENTICATE, 1, {"auth_bytes": first}).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert 1 in bench.closed


@pytest.mark.parametrize(
    "damage",
    [
        lambda final: final.replace(b"biws", b"eSws"),
        lambda final: final.replace(b"r=rO", b"r=xO"),
        lambda final: final[:-8],
        lambda final: final[:-1] + b"\xff",
        lambda final: final.split(b",p=")[0],
        lambda final: final.split(b",p=")[0] + b",p=AAAA",
    ],
)
def test_wrong_final_tokens_of_scram_end_the_connection(damage) -> None:
    bench = bench_with()
    shake(bench, "SCRAM-SHA-512")
    client = ScramClient("SCRAM-SHA-512", "alice", "secret")
    server_first = bench.ask(AUTHENTICATE, 1, {"auth_bytes": client.first})
    final = bench.ask(AUTHENTICATE, 1, {"auth_bytes": damage(client.final(server_first.auth_bytes))})
    assert final.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert 1 in bench.closed


def test_a_wrong_password_of_scram_fails() -> None:
    bench = bench_with()
    shake(bench, "SCRAM-SHA-256")
    client = ScramClient("SCRAM-SHA-256", "alice", "Secret")
    server_first = bench.ask(AUTHENTICATE, 1, {"auth_bytes": client.first})
    final = bench.ask(AUTHENTICATE, 1, {"auth_bytes": client.final(server_first.auth_bytes)})
    assert final.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_what_a_client_may_send_before_it_is_authenticated() -> None:
    bench = bench_with(("PLAIN",))
    assert bench.ask(18, 3, {"client_software_name": "x", "client_software_version": "1"}).error_code == 0
    assert shake(bench, "SCRAM-SHA-256") == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert 1 in bench.closed
    bench.connect(2).send(3, 9, {"topics": None, "include_topic_authorized_operations": False,
                                 "include_cluster_authorized_operations": False}, connection=2)  # fmt: skip
    assert "before authentication" in bench.closed[2]
    assert bench.response(3, 9, connection=2) is None
    early = bench.connect(3).ask(AUTHENTICATE, 1, {"auth_bytes": b"\0alice\0secret"}, connection=3)
    assert early.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert 3 in bench.closed


def test_before_authentication_requests_are_small() -> None:
    bench = bench_with(sasl_server_max_receive_size=1_000)
    bench.receive(HOST, ClientBytes(connection=1, data=(1_001).to_bytes(4, "big")))
    assert "allowed: 0 to 1000" in bench.closed[1]
    bench.connect(2).ask(HANDSHAKE, 1, {"mechanism": "PLAIN"}, connection=2)
    bench.ask(AUTHENTICATE, 1, {"auth_bytes": b"\0alice\0secret"}, connection=2)
    bench.receive(HOST, ClientBytes(connection=2, data=(1_001).to_bytes(4, "big")))
    assert 2 not in bench.closed


def test_after_version_0_of_the_handshake_tokens_are_frames() -> None:
    bench = bench_with()
    assert shake(bench, "SCRAM-SHA-256", version=0) == ErrorCode.NONE
    client = ScramClient("SCRAM-SHA-256", "alice", "secret")

    def exchange(token: bytes) -> bytes:
        data = len(token).to_bytes(4, "big") + token
        bench.receive(HOST, ClientBytes(connection=1, data=data))
        answer = bytes(bench.sent_bytes.pop(1, b""))
        assert int.from_bytes(answer[:4], "big") == len(answer) - 4
        return answer[4:]

    assert exchange(client.final(exchange(client.first))) == client.verifier
    assert bench.ask(18, 0, {}).error_code == ErrorCode.NONE
    bench.connect(2).ask(HANDSHAKE, 0, {"mechanism": "PLAIN"}, connection=2)
    bench.receive(HOST, ClientBytes(connection=2, data=b"\0\0\0\1x"))
    assert "authentication failed" in bench.closed[2]


def test_a_listener_without_sasl_refuses_it() -> None:
    bench = KafkaBench().run(*one_topic()).connect()
    assert shake(bench, "PLAIN") == ErrorCode.ILLEGAL_SASL_STATE
    assert bench.ask(AUTHENTICATE, 1, {"auth_bytes": b""}).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert not bench.closed


def test_users_of_a_file() -> None:
    assert users_of(["# team", "", "alice=a=b", " bob=c "], "users") == {"alice": "a=b", "bob": "c"}
    for lines, found in ((["alice"], "line 1"), (["a=b", "=x"], "line 2"), (["a=b", "a=c"], "user 'a' in line 2")):
        with pytest.raises(ConfigError, match=found):
            users_of(lines, "users")
    with pytest.raises(ConfigError, match="GSSAPI"):
        Sasl({}, Random(0).randbytes, ["GSSAPI"])
