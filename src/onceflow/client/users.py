"""Who may log in to a cluster, asked and changed through Kafka's own requests (KIP-554), so at any Kafka.

The password stays here: what is sent is salted and hashed, and the broker keeps even less. A user has one credential
for each mechanism, and Kafka takes one change of a user per request: two mechanisms are two requests.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onceflow.client.cluster import Cluster, refuse
from onceflow.client.sasl import SCRAM_HASHES
from onceflow.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from onceflow.wire.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

__all__ = ["User", "delete_user", "list_users", "set_password"]

NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
NAMES: Final = {number: name for name, number in NUMBERS.items()}
SALT_SIZE: Final = 24


@dataclass(frozen=True, kw_only=True)
class User:
    name: str
    iterations: Mapping[str, int]
    """By mechanism."""


def list_users(cluster: Cluster) -> list[User]:
    """All of them, by name."""
    answer = cluster.any_broker().ask(DescribeUserScramCredentialsRequest(users=None))
    refuse(answer.error_code, "asking for users", answer.error_message)
    found = []
    for result in answer.results:
        refuse(result.error_code, f"asking for user {result.user!r}", result.error_message)
        iterations = {
            NAMES.get(info.mechanism, f"mechanism {info.mechanism}"): info.iterations
            for info in result.credential_infos
        }
        found.append(User(name=result.user, iterations=dict(sorted(iterations.items()))))
    return sorted(found, key=lambda user: user.name)


def set_password(cluster: Cluster, user: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
    """Create the user or change its password, one mechanism after the other."""
    for mechanism in mechanisms:
        salt = secrets.token_bytes(SALT_SIZE)
        salted = hashlib.pbkdf2_hmac(SCRAM_HASHES[mechanism], password.encode(), salt, iterations)
        upsertion = ScramCredentialUpsertion(
            name=user, mechanism=NUMBERS[mechanism], iterations=iterations, salt=salt, salted_password=salted
        )
        _alter(cluster, f"setting the {mechanism} password of {user!r}", upsertions=[upsertion])


def delete_user(cluster: Cluster, user: str, mechanisms: Sequence[str]) -> None:
    for mechanism in mechanisms:
        deletion = ScramCredentialDeletion(name=user, mechanism=NUMBERS[mechanism])
        _alter(cluster, f"deleting the {mechanism} password of {user!r}", deletions=[deletion])


def _alter(
    cluster: Cluster,
    doing: str,
    *,
    upsertions: Sequence[ScramCredentialUpsertion] = (),
    deletions: Sequence[ScramCredentialDeletion] = (),
) -> None:
    request = AlterUserScramCredentialsRequest(upsertions=list(upsertions), deletions=list(deletions))
    [result] = cluster.any_broker().ask(request).results
    refuse(result.error_code, doing, result.error_message)
