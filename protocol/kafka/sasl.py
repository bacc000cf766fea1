"""SASL at a listener: SaslHandshake, SaslAuthenticate, and the mechanisms PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512.

A connection of a listener with `Sasl` has a `SaslSession`. Until it has a principal, only ApiVersions and the two SASL
requests are served. A client chooses a mechanism with SaslHandshake; its tokens and the server's are then fields of
SaslAuthenticate, or, after version 0 of the handshake, frames of their own. A token that the mechanism refuses gets
SASL_AUTHENTICATION_FAILED, and the connection ends; so does one after a handshake for a mechanism that is not enabled.

PLAIN is one token, `authorization NUL user NUL password` (RFC 4616). SCRAM (RFC 5802) is two exchanges, in which the
client proves that it knows the password without sending it, and the server that it knows a key made of the password:

    SaltedPassword = PBKDF2(password, salt, i)      ClientKey = HMAC(SaltedPassword, "Client Key")
    StoredKey = H(ClientKey)                        ServerKey = HMAC(SaltedPassword, "Server Key")
    AuthMessage = client-first-bare "," server-first "," client-final-without-proof
    proof = ClientKey XOR HMAC(StoredKey, AuthMessage)      verifier = HMAC(ServerKey, AuthMessage)

A mechanism is a generator: it is sent the client's tokens, yields the server's, and returns the user with the last one.
Passwords are compared in constant time. User names are taken as they are, without SASLprep, as in Kafka.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from protocol.config import ConfigError
from protocol.errors import ErrorCode
from protocol.kafka.view import Client, LastResponse, View
from protocol.kafka.wire import KafkaRequest, Values
from protocol.messages.acls import USER_PREFIX

PLAIN = "PLAIN"
SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS = (PLAIN, *SCRAM_HASHES)
ITERATIONS = 4_096
"""Kafka's default for SCRAM."""
SALT_BYTES = NONCE_BYTES = 18
RandomBytes = Callable[[int], bytes]
Mechanism = Generator[bytes, bytes, tuple[str, bytes]]


class SaslFailed(Exception):
    """Why a client is not authenticated."""


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server knows of a user's password for one hash."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


class Sasl:
    """The mechanisms and users of a listener. `random_bytes(n)` gives salts and nonces: those of the system, or of a
    seed in a simulation. ConfigError for a mechanism that does not exist.
    """

    def __init__(
        self, users: Mapping[str, str], random_bytes: RandomBytes, mechanisms: Iterable[str] = MECHANISMS
    ) -> None:
        self.mechanisms = tuple(mechanisms)
        self._random_bytes = random_bytes
        self._users = dict(users)
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        for mechanism in self.mechanisms:
            if mechanism not in MECHANISMS:
                raise ConfigError("sasl.enabled.mechanisms", mechanism, ", ".join(MECHANISMS))

    def start(self, mechanism: str) -> Mechanism:
        """The server's side of a mechanism that is enabled."""
        return _plain(self) if mechanism == PLAIN else _scram(self, SCRAM_HASHES[mechanism])

    def nonce(self) -> str:
        """A new nonce of the server: printable, without commas."""
        return b64encode(self._random_bytes(NONCE_BYTES)).decode()

    def has_password(self, user: str, password: str) -> bool:
        known = self._users.get(user)
        return known is not None and hmac.compare_digest(known.encode(), password.encode())

    def credential(self, user: str, hash_name: str) -> ScramCredential:
        """The credential of a user. SaslFailed for an unknown one."""
        if user not in self._users:
            raise SaslFailed("unknown user or wrong password")
        key = (user, hash_name)
        if key not in self._credentials:
            salt = self._random_bytes(SALT_BYTES)
            self._credentials[key] = scram_credential(self._users[user], salt, hash_name)
        return self._credentials[key]


def users_of(lines: Iterable[str], source: str) -> dict[str, str]:
    """Passwords by user, of lines `NAME=PASSWORD`; empty lines and those that begin with # are left out. ConfigError
    for another line, or a user who is named twice; `source` names the file in it.
    """
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, password = text.partition("=")
        if not name or not password:
            raise ConfigError(source, f"line {number}", "NAME=PASSWORD")
        if name in users:
            raise ConfigError(source, f"user {name!r} in line {number}", "each user once")
        users[name] = password
    return users


def scram_credential(password: str, salt: bytes, hash_name: str, iterations: int = ITERATIONS) -> ScramCredential:
    """The credential of a password (RFC 5802, section 3)."""
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramCredential(salt, iterations, stored_key, hmac.digest(salted, b"Server Key", hash_name))


def _plain(sasl: Sasl) -> Mechanism:
    token = yield b""
    parts = _text(token).split("\0")
    if len(parts) != 3:
        raise SaslFailed(f"found a PLAIN token of {len(parts)} parts; allowed: 3")
    acts_as, user, password = parts
    if not sasl.has_password(user, password):
        raise SaslFailed("unknown user or wrong password")
    if acts_as not in ("", user):
        raise SaslFailed("a client acts for its own user only")
    return user, b""


def _scram(sasl: Sasl, hash_name: str) -> Mechanism:
    first = _text((yield b""))
    header, bare = _split_header(first)
    wanted = _attributes(bare)
    if "m" in wanted or not wanted.get("n") or not wanted.get("r"):
        raise SaslFailed("found a first SCRAM token without a user or a nonce, or with an unknown extension")
    user = wanted["n"].replace("=2C", ",").replace("=3D", "=")
    known = sasl.credential(user, hash_name)
    nonce = wanted["r"] + sasl.nonce()
    server_first = f"r={nonce},s={b64encode(known.salt).decode()},i={known.iterations}"
    final = _text((yield server_first.encode()))
    without_proof, _, proof = final.rpartition(",p=")
    answer = _attributes(without_proof)
    if answer.get("c") != b64encode(header.encode()).decode() or answer.get("r") != nonce:
        raise SaslFailed("found a final SCRAM token of another exchange")
    message = f"{bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(known.stored_key, message, hash_name)
    client_key = _xor(signature, _bytes_of(proof))
    if not hmac.compare_digest(hashlib.new(hash_name, client_key).digest(), known.stored_key):
        raise SaslFailed("unknown user or wrong password")
    return user, b"v=" + b64encode(hmac.digest(known.server_key, message, hash_name))


def _split_header(first: str) -> tuple[str, str]:
    """(header with its commas, the rest) of a client's first token. Channel binding and acting as others is refused."""
    parts = first.split(",", 2)
    if len(parts) != 3 or parts[0] not in ("n", "y") or parts[1]:
        raise SaslFailed("found a first SCRAM token with channel binding or for another user; allowed: neither")
    return f"{parts[0]},,", parts[2]


def _attributes(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        found.setdefault(name, value)
    return found


def _text(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError as error:
        raise SaslFailed("found a token that is not UTF-8") from error


def _bytes_of(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError) as error:
        raise SaslFailed("found a proof that is not base64") from error


def _xor(left: bytes, right: bytes) -> bytes:
    if len(left) != len(right):
        raise SaslFailed(f"found a proof of {len(right)} bytes; allowed: {len(left)}")
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class SaslSession:
    """The authentication of one connection. `expects_frames`: the next frames are tokens, after handshake version 0."""

    def __init__(self, sasl: Sasl) -> None:
        self.sasl = sasl
        self.is_complete = False
        self.expects_frames = False
        self._mechanism: Mechanism | None = None

    @property
    def has_mechanism(self) -> bool:
        return self._mechanism is not None

    def choose(self, mechanism: str, version: int) -> None:
        """The client's handshake for a mechanism that is enabled."""
        self._mechanism = self.sasl.start(mechanism)
        next(self._mechanism)
        self.expects_frames = version == 0

    def step(self, client: Client, token: bytes) -> bytes:
        """The server's answer to a token; sets the client's principal once it is authenticated. SaslFailed if not."""
        assert self._mechanism is not None
        try:
            return self._mechanism.send(token)
        except StopIteration as end:
            user, answer = end.value
        client.principal = f"{USER_PREFIX}{user}"
        self.is_complete, self.expects_frames, self._mechanism = True, False, None
        return bytes(answer)


def handshake(view: View, client: Client, request: KafkaRequest) -> Values | LastResponse:
    """Chooses a mechanism. ILLEGAL_SASL_STATE on a listener without SASL and once a mechanism is chosen."""
    session: SaslSession | None = client.sasl
    if session is None:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    mechanisms = session.sasl.mechanisms
    if session.is_complete or session.has_mechanism:
        return LastResponse({"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": mechanisms})
    if request.body.mechanism not in mechanisms:
        return LastResponse({"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": mechanisms})
    session.choose(request.body.mechanism, request.version)
    return {"error_code": ErrorCode.NONE, "mechanisms": mechanisms}


def authenticate(view: View, client: Client, request: KafkaRequest) -> Values | LastResponse:
    """One token of the client and the server's answer."""
    session: SaslSession | None = client.sasl
    if session is None or session.is_complete:
        text = "this connection needs no authentication" if session is None else "this connection is authenticated"
        return _failure(ErrorCode.ILLEGAL_SASL_STATE, text)
    if not session.has_mechanism:
        text = "found SaslAuthenticate before SaslHandshake"
        return LastResponse(_failure(ErrorCode.ILLEGAL_SASL_STATE, text))
    try:
        answer = session.step(client, request.body.auth_bytes)
    except SaslFailed as failed:
        return LastResponse(_failure(ErrorCode.SASL_AUTHENTICATION_FAILED, f"authentication failed: {failed}"))
    return {"error_code": ErrorCode.NONE, "error_message": None, "auth_bytes": answer}


def _failure(error: ErrorCode, text: str) -> dict[str, Any]:
    return {"error_code": error, "error_message": text, "auth_bytes": b""}
