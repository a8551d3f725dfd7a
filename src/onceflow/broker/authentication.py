"""What a client says to log in, and whether it is true: PLAIN (RFC 4616) and SCRAM (RFC 5802, 7677). No sockets here.

- A wrong password and a name that nobody has cannot be told apart, neither by what is answered nor by how long it
  takes: both are checked, and compared in constant time.
- What is refused is refused with one of Kafka's sentences, which repeat nothing of what the client sent.
- SCRAM binds no channel. A client that wants to (`p=`), asks for an extension that must be understood (`m=`) or comes
  with a delegation token is refused; other extensions are ignored, but are part of what is signed.
- Checking a password takes milliseconds, so `Plain` does not: it gives back what is to be run in a thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from onceflow.broker.users import HASHES, NAME_MAX, Credential, Users

__all__ = ["Accepted", "AuthenticationFailed", "Challenge", "Mechanism", "PasswordCheck", "mechanism_named"]

PLAIN: Final = "PLAIN"
PASSWORD_MAX: Final = 4096
"""Bytes. Hashing takes time by length, too."""
OTHER_IDENTITY: Final = "Authentication failed: Client requested an authorization id that is different from username"
WRONG_PASSWORD: Final = "Authentication failed: Invalid username or password"


class AuthenticationFailed(Exception):
    """The message is for the client, and tells nothing that a stranger may not know."""


class Challenge(NamedTuple):
    """Not done yet: what the client is to answer to."""

    data: bytes


class Accepted(NamedTuple):
    user: str
    data: bytes = b""
    """The last word, which proves that we are who we say."""


class PasswordCheck(NamedTuple):
    run: Callable[[], Accepted]
    """Takes milliseconds; raises `AuthenticationFailed`."""


class Mechanism(Protocol):
    def evaluate(self, token: bytes) -> Challenge | Accepted | PasswordCheck:
        """What comes of the client's next token. Raises `AuthenticationFailed`."""
        ...


def mechanism_named(name: str, users: Users) -> Mechanism:
    return Plain(users) if name == PLAIN else Scram(name, users)


def invalid_credentials(mechanism: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )


class Plain:
    """`[authorization id] NUL user NUL password`, and that is all."""

    def __init__(self, users: Users) -> None:
        self._users = users

    def evaluate(self, token: bytes) -> PasswordCheck:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise invalid_credentials(PLAIN) from None
        if len(parts) != 3:
            raise invalid_credentials(PLAIN)
        other_id, user, password = parts
        if not user or not password:
            raise AuthenticationFailed(f"Authentication failed: {'password' if user else 'username'} not specified")
        if len(user) > NAME_MAX or len(token) > PASSWORD_MAX + NAME_MAX:
            raise AuthenticationFailed(WRONG_PASSWORD)
        credential, exists = self._users.to_check_password(user)

        def check() -> Accepted:
            if not credential.is_password(password) or not exists:
                raise AuthenticationFailed(WRONG_PASSWORD)
            if other_id not in ("", user):
                raise AuthenticationFailed(OTHER_IDENTITY)
            return Accepted(user)

        return PasswordCheck(check)


class Scram:
    """Two tokens: who I am and a number of mine; then the proof, for both our numbers."""

    def __init__(self, name: str, users: Users) -> None:
        self._name = name
        self._hash = HASHES[name]
        self._users = users
        self._first: _First | None = None
        self._challenge = b""
        self._nonce = ""

    def evaluate(self, token: bytes) -> Challenge | Accepted:
        try:
            return self._challenged(token) if self._first is None else self._proven(self._first, token)
        except _Malformed:
            raise invalid_credentials(self._name) from None

    def _challenged(self, token: bytes) -> Challenge:
        first = _First.read(token)
        if first.other_id not in ("", first.user):
            raise AuthenticationFailed(OTHER_IDENTITY)
        credential, _ = self._users.to_check(first.user, self._name)
        self._first = first
        self._nonce = first.nonce + secrets.token_urlsafe(24)
        salt = base64.b64encode(credential.salt).decode()
        self._challenge = f"r={self._nonce},s={salt},i={credential.iterations}".encode()
        return Challenge(self._challenge)

    def _proven(self, first: _First, token: bytes) -> Accepted:
        without_proof, comma, shown = token.rpartition(b",p=")
        attributes = _attributes(_text(without_proof))
        if not comma or attributes[:2] != [("c", _base64(first.header)), ("r", self._nonce)]:
            raise _Malformed
        # The one that was challenged: between the two tokens it may have got another password.
        credential, exists = self._users.to_check(first.user, self._name)
        signed = b",".join((first.bare, self._challenge, without_proof))
        if not self._is_proof(credential, signed, _decoded(shown)) or not exists:
            raise invalid_credentials(self._name)
        signature = hmac.digest(credential.server_key, signed, self._hash)
        return Accepted(first.user, b"v=" + base64.b64encode(signature))

    def _is_proof(self, credential: Credential, signed: bytes, proof: bytes) -> bool:
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)


class _Malformed(Exception):
    """It is not what SCRAM says, or more than is supported here."""


class _First(NamedTuple):
    """The first token: `n,[a=authorization id],n=user,r=nonce[,extensions]`."""

    header: bytes
    bare: bytes
    other_id: str
    user: str
    nonce: str

    @classmethod
    def read(cls, token: bytes) -> _First:
        binding, other_id, *rest = _text(token).split(",")
        # y: "I could bind the channel, and believe that you cannot", which is true.
        if binding not in ("n", "y") or not rest or (other_id and not other_id.startswith("a=")):
            raise _Malformed
        bare = ",".join(rest)
        attributes = _attributes(bare)
        if [name for name, _ in attributes[:2]] != ["n", "r"] or ("tokenauth", "true") in attributes[2:]:
            raise _Malformed
        user, nonce = _name(attributes[0][1]), attributes[1][1]
        if not user or len(user) > NAME_MAX or not nonce or not all("!" <= each <= "~" for each in nonce):
            raise _Malformed
        header = f"{binding},{other_id},".encode()
        return cls(header, bare.encode(), _name(other_id.removeprefix("a=")), user, nonce)


def _text(token: bytes) -> str:
    try:
        text = token.decode()
    except UnicodeDecodeError:
        raise _Malformed from None
    if "\0" in text or text.count(",") < 1:
        raise _Malformed
    return text


def _attributes(text: str) -> list[tuple[str, str]]:
    found = []
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not (name.isascii() and name.isalpha()):
            raise _Malformed
        found.append((name, value))
    return found


def _name(escaped: str) -> str:
    """RFC 5802: a comma is =2C, an equals sign =3D, and no other escape exists."""
    first, *rest = escaped.split("=")
    if any(not part.startswith(("2C", "3D")) for part in rest):
        raise _Malformed
    return first + "".join(("," if part.startswith("2C") else "=") + part[2:] for part in rest)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _Malformed from None
