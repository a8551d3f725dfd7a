"""Who may log in, and how that is known without knowing passwords: `users.json` in the data directory.

- Of a password only what SCRAM (RFC 5802) needs to check it is kept: a salt, the number of rounds, two keys. PLAIN is
  checked against the same keys. Whoever reads the file can neither log in with it nor read a password from it.
- The file is replaced as a whole and synced, and only its owner may read it. A crash leaves the old one or the new one.
- **A name that nobody has looks like any other**: it has a salt, always the same one, made from a secret in the file,
  and is refused only once a password was shown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.log.files import FileSystem
from onceflow.log.small_files import read_json, reading_version, replace_json

__all__ = ["HASHES", "ITERATIONS_DEFAULT", "Change", "Credential", "Users", "salted_password"]

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN, ITERATIONS_DEFAULT, ITERATIONS_MAX = 4096, 8192, 16384
"""The bounds are Kafka's."""
SALT_SIZE: Final = 24
OUR_SHAPE: Final = (SALT_SIZE, ITERATIONS_DEFAULT)
USERS_MAX: Final = 10_000
NAME_MAX: Final = 1000
USERS_FILE: Final = "users.json"
FORMAT_VERSION: Final = 1
REMEDY: Final = "Restore it from a backup of the directory, or write {} into it to begin without users."


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """The slow part, on purpose: some milliseconds."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


@dataclass(frozen=True, kw_only=True, slots=True)
class Credential:
    """How one user's password is checked in one mechanism."""

    mechanism: str
    salt: bytes = field(repr=False)
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    @classmethod
    def of(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
        hash_name = HASHES[mechanism]
        client_key = hmac.digest(salted, b"Client Key", hash_name)
        return cls(
            mechanism=mechanism,
            salt=salt,
            iterations=iterations,
            stored_key=hashlib.new(hash_name, client_key).digest(),
            server_key=hmac.digest(salted, b"Server Key", hash_name),
        )

    @classmethod
    def of_password(cls, mechanism: str, password: str, iterations: int = ITERATIONS_DEFAULT) -> Credential:
        salt = secrets.token_bytes(SALT_SIZE)
        return cls.of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)

    def is_password(self, password: str) -> bool:
        """Takes some milliseconds."""
        salted = salted_password(self.mechanism, password, self.salt, self.iterations)
        shown = Credential.of(self.mechanism, salted, self.salt, self.iterations)
        return hmac.compare_digest(shown.stored_key, self.stored_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A credential that a user is given, or that is taken away."""

    user: str
    mechanism: str
    credential: Credential | None = None
    """None: taken away."""


class Users:
    """The users of one data directory."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / USERS_FILE
        self._secret = secrets.token_bytes(32)
        self._credentials: dict[str, dict[str, Credential]] = {}
        self._most_common: dict[str, tuple[int, int]] = {}
        self._most_common_mechanism: str | None = None
        if files.exists(self._path):
            self._load()

    def __iter__(self) -> Iterator[str]:
        return iter(self._credentials)

    def __contains__(self, user: str) -> bool:
        return user in self._credentials

    def credentials(self, user: str) -> Mapping[str, Credential]:
        """By mechanism; nothing for a user that does not exist."""
        return self._credentials.get(user, {})

    def to_check(self, user: str, mechanism: str) -> tuple[Credential, bool]:
        """What a login is checked against, and whether it may succeed: a user that does not exist is checked too."""
        found = self.credentials(user).get(mechanism)
        return (self._made_up(user, mechanism), False) if found is None else (found, True)

    def to_check_password(self, user: str) -> tuple[Credential, bool]:
        """The same for PLAIN, which has no keys of its own."""
        return self.to_check(user, _first_mechanism(self.credentials(user)) or self._usual_mechanism())

    def _made_up(self, user: str, mechanism: str) -> Credential:
        seed = hmac.digest(self._secret, f"{mechanism}\0{user}".encode(), "sha512")
        size = hashlib.new(HASHES[mechanism]).digest_size
        salt_size, iterations = self._usual(mechanism)
        return Credential(
            mechanism=mechanism,
            salt=hashlib.shake_256(seed).digest(salt_size),
            iterations=iterations,
            stored_key=seed[:size],
            server_key=seed[:size],
        )

    def _usual_mechanism(self) -> str:
        """By which PLAIN is checked for most users: the others take another time."""
        if self._most_common_mechanism is None:
            found = Counter(_first_mechanism(own) for own in self._credentials.values())
            self._most_common_mechanism = max(HASHES, key=lambda name: found[name])
        return self._most_common_mechanism

    def _usual(self, mechanism: str) -> tuple[int, int]:
        """Size of the salt and rounds that most users have: who was made by another program has others than ours."""
        if mechanism not in self._most_common:
            found = [own[mechanism] for own in self._credentials.values() if mechanism in own]
            shapes = Counter((len(each.salt), each.iterations) for each in found)
            self._most_common[mechanism] = max(shapes, key=lambda shape: (shapes[shape], shape), default=OUR_SHAPE)
        return self._most_common[mechanism]

    # Changes

    def apply(self, changes: Iterable[Change]) -> None:
        """All of them or none; they are on disk when this returns. Raises `StorageError` with nothing changed."""
        after = {user: dict(credentials) for user, credentials in self._credentials.items()}
        for change in changes:
            own = after.setdefault(change.user, {})
            if change.credential is None:
                own.pop(change.mechanism, None)
            else:
                own[change.mechanism] = change.credential
            if not own:
                del after[change.user]
        if len(after) > USERS_MAX:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"There may be {USERS_MAX} users, and no more.")
        self._save(after)
        self._credentials = after
        self._most_common.clear()
        self._most_common_mechanism = None

    def create_file(self) -> None:
        """For a new directory: from then on a file that is missing was removed by somebody."""
        if not self._files.exists(self._path):
            self._save(self._credentials)

    def _save(self, credentials: Mapping[str, Mapping[str, Credential]]) -> None:
        users = {
            user: {mechanism: _credential_to_json(each) for mechanism, each in sorted(own.items())}
            for user, own in sorted(credentials.items())
        }
        content = {"version": FORMAT_VERSION, "secret": _text(self._secret), "users": users}
        replace_json(self._files, self._path, content, private=True)

    def _load(self) -> None:
        content = read_json(self._files, self._path, REMEDY)
        if not content:
            return
        with reading_version(FORMAT_VERSION, self._path, content, REMEDY):
            self._secret = _bytes(content["secret"])
            self._credentials = {
                user: {mechanism: _credential(mechanism, each) for mechanism, each in own.items()}
                for user, own in content["users"].items()
            }


def _first_mechanism(own: Mapping[str, Credential]) -> str | None:
    return next((each for each in HASHES if each in own), None)


def _credential_to_json(credential: Credential) -> dict[str, Any]:
    return {
        "salt": _text(credential.salt),
        "iterations": credential.iterations,
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }


def _credential(mechanism: str, stored: Mapping[str, Any]) -> Credential:
    size = hashlib.new(HASHES[mechanism]).digest_size
    iterations = stored["iterations"]
    keys = _bytes(stored["stored_key"]), _bytes(stored["server_key"])
    if type(iterations) is not int or iterations < ITERATIONS_MIN or any(len(key) != size for key in keys):
        raise ValueError("a credential is not one")
    return Credential(
        mechanism=mechanism,
        salt=_bytes(stored["salt"]),
        iterations=iterations,
        stored_key=keys[0],
        server_key=keys[1],
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("a value is not base64") from None
