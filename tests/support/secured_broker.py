"""Our broker with a listener of every kind, users, certificates, and a log that tells everything.

with SecuredBroker(folder) as broker:
    broker.addresses["SASL_SSL"]
    broker.client("SASL_SSL", "alice", "PLAIN")     # client settings, as of SecuredKafka
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import onceflow
from onceflow.broker.users import HASHES, Change, Credential, Users
from onceflow.client.cluster import Cluster
from onceflow.client.settings import ClientSettings
from onceflow.log.files import RealFileSystem
from tests.support.raw_client import RawClient
from tests.support.secured_kafka import USERS, Certificates

__all__ = ["LISTENERS", "MECHANISMS", "SecuredBroker", "add_users"]

LISTENERS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", *HASHES)
ROUNDS = 4096


def add_users(directory: Path, users: Mapping[str, str] = USERS) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    Users(RealFileSystem(), directory).apply(
        Change(user=user, mechanism=mechanism, credential=Credential.of_password(mechanism, password, ROUNDS))
        for user, password in users.items()
        for mechanism in HASHES
    )


class _TalkativeBroker(onceflow.Broker):
    def _program(self) -> list[str]:
        return ["onceflow", "broker", "--log-level", "debug"]


class SecuredBroker:
    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.certificates = Certificates(folder)
        add_users(folder / "data")
        self.broker = _TalkativeBroker(
            folder / "data",
            listeners=[f"{protocol}://127.0.0.1:0" for protocol in LISTENERS],
            durability="os",
            settings={
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "ssl.keystore.location": str(self.certificates.server),
                "ssl.truststore.location": str(self.certificates.ca),
                "ssl.client.auth": "requested",
                "connection.failed.authentication.delay.ms": 20,
                **(settings or {}),
            },
        )

    @property
    def addresses(self) -> dict[str, str]:
        return dict(zip(LISTENERS, self.broker.bootstraps, strict=True))

    @property
    def log(self) -> str:
        return self.broker.log_file.read_text()

    def client(self, listener: str, user: str = "alice", mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        settings = {"security.protocol": listener}
        if listener.endswith("SSL"):
            settings |= {"ssl.ca.location": str(self.certificates.ca)}
        if listener.startswith("SASL"):
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": USERS.get(user, "none")}
        return settings

    def own_certificate(self) -> dict[str, str]:
        return {
            "ssl.certificate.location": str(self.certificates.client),
            "ssl.key.location": str(self.certificates.client_key),
        }

    def cluster(self, listener: str, settings: Mapping[str, str] | None = None) -> Cluster:
        """Our own client."""
        extra = self.client(listener) if settings is None else settings
        return Cluster(ClientSettings(bootstrap=self.addresses[listener], extra=extra))

    def raw(self, listener: str = "PLAINTEXT") -> RawClient:
        return RawClient(self.addresses[listener])

    def __enter__(self) -> SecuredBroker:
        self.broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.stop()
