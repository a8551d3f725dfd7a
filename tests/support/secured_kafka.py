"""A real Apache Kafka that asks who comes: TLS, logins and access control.

    with SecuredKafka() as kafka:
        kafka.bootstraps["SASL_SSL"]                    # one address per listener
        kafka.client("SASL_SSL", "alice")               # the client settings that go with it
        kafka.allow("alice", "topic", "orders", "read") # everything that is not allowed is refused

The listeners: `PLAINTEXT` (whoever comes there is an administrator), `SSL`, `MTLS` (TLS that asks for a client
certificate), `SASL_PLAINTEXT`, `SASL_SSL`, and `SHORT_LOGINS`, where a PLAIN login lasts three seconds. Users log in
with PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512; over `SSL` everybody is `User:ANONYMOUS`, an administrator too.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from onceflow.client.addresses import parse_bootstrap
from onceflow.client.connection import Connection, NotAdmitted
from onceflow.client.security import Security
from onceflow.ports import ReservedPort
from tests.support.apache_kafka import HOST, ApacheKafka
from tests.support.waiting import eventually

__all__ = ["ADMIN", "Certificates", "SecuredKafka", "USERS"]

USERS: Mapping[str, str] = {"admin": "admin-secret", "alice": "alice-secret", "bob, the =other": 'odd " \\ secret'}
"""Names and passwords; the last one has all characters that mean something to somebody on the way."""
ADMIN = "admin"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SHORT_LOGIN_MS = 3000

LISTENERS = {
    "SSL": "SSL",
    "MTLS": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "SHORT_LOGINS": "SASL_PLAINTEXT",
}


class Certificates:
    """A CA, a server's certificate for 127.0.0.1 (and for no name), a client's; and a CA that vouches for neither."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca, self.other_ca = folder / "ca.pem", folder / "other-ca.pem"
        self.server = folder / "server-store.pem"
        """Key and certificate in one file, as Kafka takes a PEM store."""
        self.client, self.client_key = folder / "client.pem", folder / "client.key"
        self.client_store = folder / "client-store.pem"
        self.client_key_encrypted = folder / "client-encrypted.key"
        self.client_key_password = "key-secret"
        self._authority("ca")
        self._authority("other-ca")
        self._signed("server", "serverAuth", f"IP:{HOST}")
        self._signed("client", "clientAuth", "DNS:client")
        for name in ("server", "client"):
            store = self._read(f"{name}.key") + self._read(f"{name}.pem") + self._read("ca.pem")
            (folder / f"{name}-store.pem").write_text(store)
        secret = f"pass:{self.client_key_password}"
        self._openssl("pkcs8", "-topk8", "-in", "client.key", "-out", "client-encrypted.key", "-passout", secret)

    def _authority(self, name: str) -> None:
        self._openssl(*_new_key(f"{name}.key"), "-x509", "-out", f"{name}.pem", "-subj", f"/CN=onceflow {name}")

    def _signed(self, name: str, purpose: str, alternative_name: str) -> None:
        self._openssl(*_new_key(f"{name}.key"), "-out", f"{name}.csr", "-subj", f"/CN={name}")
        extensions = self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={alternative_name}\nextendedKeyUsage={purpose}\n")
        authority = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", *authority, "-extfile", extensions.name, "-out", f"{name}.pem"
        )

    def _openssl(self, *arguments: str) -> None:
        done = subprocess.run(
            ["openssl", *arguments], cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"openssl {arguments[0]} failed: {done.stderr.decode()}")

    def _read(self, name: str) -> str:
        return (self._folder / name).read_text()


def _new_key(path: str) -> list[str]:
    return ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-keyout", path]


class SecuredKafka:
    def __init__(self, properties: Mapping[str, object] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="secured-kafka-"))
        self.users = USERS
        self._admin: Any = None
        try:
            self.certificates = Certificates(self.folder)
            self._reserved = [ReservedPort(HOST) for _ in range(2 + len(LISTENERS))]
            port, controller_port, *ports = [each.number for each in self._reserved]
            self.bootstraps = {
                name: f"{HOST}:{each}" for name, each in zip(["PLAINTEXT", *LISTENERS], [port, *ports], strict=True)
            }
            listening = _listening(self.bootstraps, f"{HOST}:{controller_port}")
            self.kafka = ApacheKafka(
                {**listening, **_security(self.certificates), **(properties or {})},
                ports=(port, controller_port),
                format_arguments=_scram_users(),
            )
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        self.ca_file = str(self.certificates.ca)

    def client(self, listener: str, user: str = ADMIN, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
        """The client settings for a listener, under names that Java, librdkafka and we know, but for the login's."""
        protocol = LISTENERS.get(listener, "PLAINTEXT")
        settings = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            settings |= {"ssl.ca.location": self.ca_file}
        if listener == "MTLS":
            settings |= {"ssl.certificate.location": str(self.certificates.client)}
            settings |= {"ssl.key.location": str(self.certificates.client_key)}
        if protocol.startswith("SASL"):
            settings |= {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": self.users[user]}
        return settings

    def allow(self, user: str, resource: str, name: str, *operations: str, prefixed: bool = False) -> None:
        """For example `allow("alice", "topic", "orders", "read", "describe")`; resources are `topic`, `group`,
        `transactional_id` and `broker`, whose name is `kafka-cluster`. The controller answers before the broker has
        seen it, so the broker is asked, too.
        """
        from confluent_kafka.admin import AclOperation, AclPermissionType

        acls = [
            _acl(resource, name, prefixed, user, AclOperation[operation.upper()], AclPermissionType.ALLOW)
            for operation in operations
        ]
        for future in self.admin().create_acls(acls).values():
            future.result(timeout=15)
        eventually(lambda: set(acls) <= set(self._allowed(user)), f"the broker knows what {user} may do")

    def disallow(self, user: str) -> None:
        """Takes back everything that was allowed, and waits until the broker has seen it."""
        for future in self.admin().delete_acls([self._all_acls(user)]).values():
            future.result(timeout=15)
        eventually(lambda: not self._allowed(user), f"the broker knows that {user} may do nothing")

    def _allowed(self, user: str) -> list[Any]:
        found: list[Any] = self.admin().describe_acls(self._all_acls(user)).result(timeout=15)
        return found

    @staticmethod
    def _all_acls(user: str) -> Any:
        from confluent_kafka.admin import (
            AclBindingFilter,
            AclOperation,
            AclPermissionType,
            ResourcePatternType,
            ResourceType,
        )

        return AclBindingFilter(
            ResourceType.ANY,
            None,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )

    def admin(self) -> Any:
        """A confluent-kafka AdminClient that may do everything; the same each time, since what it was asked for ends
        with it.
        """
        from confluent_kafka.admin import AdminClient

        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstraps["PLAINTEXT"], "log_level": 0})
        return self._admin

    def _add_odd_users(self) -> None:
        """Those whose names Kafka's `format` command cannot read."""
        from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

        for mechanism in SCRAM:  # one request each: Kafka does not take a user twice in one
            info = ScramCredentialInfo(ScramMechanism[mechanism.replace("-", "_")], 8192)
            odd = [
                UserScramCredentialUpsertion(user, info, password.encode())
                for user, password in USERS.items()
                if not user.isalnum()
            ]
            for future in self.admin().alter_user_scram_credentials(odd).values():
                future.result(timeout=15)
            for each in odd:
                eventually(lambda user=each.user, m=mechanism: self._lets_in(user, m), f"{each.user} may log in")

    def _lets_in(self, user: str, mechanism: str) -> bool:
        listener = "SASL_PLAINTEXT"
        [address] = parse_bootstrap(self.bootstraps[listener])
        try:
            Connection(address, timeout_s=15, security=Security.of(self.client(listener, user, mechanism))).close()
        except NotAdmitted:
            return False
        return True

    def close(self) -> None:
        self._admin = None
        self.kafka.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> SecuredKafka:
        try:
            self.kafka.start()
            self._add_odd_users()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _acl(resource: str, name: str, prefixed: bool, user: str, operation: Any, permission: Any) -> Any:
    from confluent_kafka.admin import AclBinding, ResourcePatternType, ResourceType

    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    kind = ResourceType[resource.upper()]
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def _scram_users() -> list[str]:
    return [
        argument
        for mechanism in SCRAM
        for user, password in USERS.items()
        if user.isalnum()
        for argument in ("--add-scram", f'{mechanism}=[name="{user}",password="{password}"]')
    ]


def _listening(bootstraps: Mapping[str, str], controller: str) -> dict[str, object]:
    open_to_clients = ",".join(f"{name}://{address}" for name, address in bootstraps.items())
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **LISTENERS}
    return {
        "listeners": f"{open_to_clients},CONTROLLER://{controller}",
        "advertised.listeners": open_to_clients,
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
    }


def _security(certificates: Certificates) -> dict[str, object]:
    settings: dict[str, object] = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker itself, and whoever comes without a login, on listeners of their own.
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.server,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.ca,
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": ",".join(["PLAIN", *SCRAM]),
        "listener.name.short_logins.plain.connections.max.reauth.ms": SHORT_LOGIN_MS,
    }
    for name, protocol in LISTENERS.items():
        if protocol.startswith("SASL"):
            settings |= _logins(f"listener.name.{name.lower()}")
    return settings


def _logins(listener: str) -> dict[str, object]:
    """PLAIN takes its users from the configuration, in options named after them; SCRAM has its own in the metadata."""
    package = "org.apache.kafka.common.security"
    plain_users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items() if name.isalnum())
    plain = f"{package}.plain.PlainLoginModule required {plain_users};"
    scram = f"{package}.scram.ScramLoginModule required;"
    return {
        f"{listener}.plain.sasl.jaas.config": plain,
        **{f"{listener}.{mechanism.lower()}.sasl.jaas.config": scram for mechanism in SCRAM},
    }
