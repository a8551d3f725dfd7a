"""Who we are: a login, and what is said to prove it (PLAIN of RFC 4616, SCRAM of RFC 5802 and 7677).

No sockets here: a conversation is a generator that yields what to send and is sent what came back.

- The password is in no `repr` and in no error.
- SCRAM proves both sides: a broker that does not know the password cannot sign, and is left before anything is asked
  of it.
- User names and passwords are taken as UTF-8 and not normalised any further, as Kafka's own client does it.
- How many rounds of hashing the broker may ask for is bounded on both sides: too few gives the password away to
  whoever poses as a broker, too many keeps us busy past every deadline.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from onceflow.errors import ConfigError, OnceflowError

__all__ = ["MECHANISMS", "Conversation", "Login", "LoginBroken", "jaas_login", "scram"]

Conversation = Generator[bytes, bytes, None]

SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = ("PLAIN", *SCRAM_HASHES)
SCRAM_ROUNDS_MIN: Final = 4096  # Kafka's own minimum
SCRAM_ROUNDS_MAX: Final = 1_000_000  # Kafka stores at most 16384; a million is a second of work

MODULES: Final = {"PlainLoginModule": ("PLAIN",), "ScramLoginModule": tuple(SCRAM_HASHES)}


class LoginBroken(OnceflowError):
    """The broker's part of the conversation is not what the mechanism asks for."""


@dataclass(frozen=True, kw_only=True)
class Login:
    """A user and how the password is shown."""

    mechanism: str
    """One of `MECHANISMS`."""

    username: str
    password: str = field(repr=False)

    def conversation(self) -> Conversation:
        if self.mechanism == "PLAIN":
            return _plain(self.username, self.password)
        nonce = base64.b64encode(secrets.token_bytes(24)).decode()
        return scram(SCRAM_HASHES[self.mechanism], self.username, self.password, nonce)


def _plain(username: str, password: str) -> Conversation:
    yield f"\0{username}\0{password}".encode()


def scram(hash_name: str, username: str, password: str, nonce: str) -> Conversation:
    """RFC 5802 without channel binding: who we are, the proof for the broker's challenge, the broker's signature."""
    bare = f"n={_escaped(username)},r={nonce}"
    challenge = yield f"n,,{bare}".encode()
    full_nonce, salt, rounds = _challenge(challenge, nonce)
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), salt, rounds)
    without_proof = f"c=biws,r={full_nonce}"  # biws is n,, in base64
    signed = b",".join((bare.encode(), challenge, without_proof.encode()))

    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    proof = _xor(client_key, hmac.digest(stored_key, signed, hash_name))
    verdict = yield f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    server_key = hmac.digest(salted, b"Server Key", hash_name)
    _check_signature(verdict, hmac.digest(server_key, signed, hash_name))


def _challenge(message: bytes, nonce: str) -> tuple[str, bytes, int]:
    """The broker's first message: nonce, salt, rounds."""
    parts = _attributes(message)
    full_nonce, salt, rounds = parts.get("r", ""), parts.get("s", ""), parts.get("i", "")
    if not full_nonce.startswith(nonce) or full_nonce == nonce:
        raise LoginBroken("its SCRAM challenge is not an answer to ours")
    if not (rounds.isascii() and rounds.isdigit() and SCRAM_ROUNDS_MIN <= int(rounds[:9]) <= SCRAM_ROUNDS_MAX):
        raise LoginBroken(
            f"it asks for {rounds[:20] or 'no'} rounds of SCRAM hashing, and only {SCRAM_ROUNDS_MIN} to "
            f"{SCRAM_ROUNDS_MAX} are accepted"
        )
    return full_nonce, _decoded(salt), int(rounds)


def _check_signature(message: bytes, expected: bytes) -> None:
    parts = _attributes(message)
    if "e" in parts:
        raise LoginBroken(f"it ended the SCRAM login: {parts['e'][:100]}")
    if not hmac.compare_digest(_decoded(parts.get("v", "")), expected):
        raise LoginBroken("it could not prove that it knows the password: it may not be the broker it claims to be")


def _attributes(message: bytes) -> dict[str, str]:
    """`a=1,b=2`. Refuses extensions that have to be understood (RFC 5802, `m=`)."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise LoginBroken("its SCRAM message is not text") from None
    parts = dict(part.partition("=")[::2] for part in text.split(","))
    if "m" in parts:
        raise LoginBroken("it asks for a SCRAM extension that is not known here")
    return parts


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise LoginBroken("its SCRAM message is not in base64 where it has to be") from None


def _escaped(username: str) -> str:
    return username.replace("=", "=3D").replace(",", "=2C")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


_JAAS_TOKEN: Final = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;="']+)|([;=]))""", re.DOTALL)


def jaas_login(text: str) -> tuple[tuple[str, ...], str, str]:
    """Mechanisms, user name and password from a value of `sasl.jaas.config`:

    org.apache.kafka.common.security.plain.PlainLoginModule required username="me" password="secret";

    Nothing of the text is repeated in an error, since any part of it may be the password.
    """
    module, options = _jaas_parts(_jaas_tokens(text.strip()))
    mechanisms = MODULES.get(module.rpartition(".")[2])
    if mechanisms is None:
        raise ConfigError(
            "sasl.jaas.config names a login module that is not supported here; supported are PlainLoginModule and "
            "ScramLoginModule"
        )
    if missing := [name for name in ("username", "password") if not options.get(name)]:
        raise ConfigError(f"sasl.jaas.config has no {missing[0]}")
    if options.get("tokenauth", "false").lower() == "true":
        raise ConfigError("sasl.jaas.config asks for a delegation token (tokenauth), which is not supported here")
    return mechanisms, options["username"], options["password"]


def _jaas_tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        found = _JAAS_TOKEN.match(text, at)
        if found is None:
            raise _bad_jaas()
        double, single, word, sign = found.groups()
        quoted = double if double is not None else single
        tokens.append(word or sign if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        at = found.end()
    return tokens


def _jaas_parts(tokens: list[str]) -> tuple[str, dict[str, str]]:
    if tokens and tokens[-1] == ";":
        tokens = tokens[:-1]
    options = tokens[2:]
    if len(tokens) < 2 or len(options) % 3 or any(sign != "=" for sign in options[1::3]):
        raise _bad_jaas()
    return tokens[0], dict(zip(options[0::3], options[2::3], strict=True))


def _bad_jaas() -> ConfigError:
    return ConfigError(
        "sasl.jaas.config is not readable; it should look like: "
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="USER" password="PASSWORD";'
    )
