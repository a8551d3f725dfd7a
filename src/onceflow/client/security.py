"""TLS and SASL as people set them for Kafka clients, under Java's names and under librdkafka's.

    Security.of({"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "me", ...})

- A setting that would have no effect is refused: whoever sets `ssl.ca.location` and forgets `security.protocol` would
  believe to be encrypted.
- Two settings that say different things are refused, not ranked.
- Passwords and keys are in no `repr` and in no error; errors name settings, not their values.
- Objects of this module can be pickled; files that they name are read where the connection is made.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from onceflow.client.sasl import MECHANISMS, Login, jaas_login
from onceflow.errors import ConfigError

__all__ = ["PLAINTEXT", "SECURITY_SETTINGS", "Pem", "Security", "Tls", "nearest"]

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")

SASL_SETTINGS: Final = ("sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password", "sasl.jaas.config")
TRUST_SETTINGS: Final = (
    "ssl.ca.location",  # librdkafka's, a file or a folder
    "ssl.ca.pem",  # librdkafka's, the text itself
    "ssl.truststore.location",
    "ssl.truststore.certificates",  # Java's, the text itself
)
CERTIFICATE_SETTINGS: Final = (
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.keystore.location",  # with the key, in one file
    "ssl.keystore.certificate.chain",
)
KEY_SETTINGS: Final = ("ssl.key.location", "ssl.key.pem", "ssl.keystore.key")
STORE_SETTINGS: Final = (
    "ssl.truststore.type",
    "ssl.truststore.password",
    "ssl.keystore.type",
    "ssl.keystore.password",
)
TLS_SETTINGS: Final = (
    *TRUST_SETTINGS,
    *CERTIFICATE_SETTINGS,
    *KEY_SETTINGS,
    *STORE_SETTINGS,
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "ssl.enabled.protocols",
)
SECURITY_SETTINGS: Final = ("security.protocol", *SASL_SETTINGS, *TLS_SETTINGS)
"""Every setting that `Security.of` understands."""

PREFIXES: Final = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")

CONVERT_JKS: Final = "keytool -importkeystore -srckeystore FILE -destkeystore store.p12 -deststoretype pkcs12"
CONVERT_PKCS12: Final = "openssl pkcs12 -in store.p12 -nodes -out store.pem"


@dataclass(frozen=True, kw_only=True)
class Pem:
    """Certificates or a key: in a file, or as text."""

    setting: str
    """Where it comes from, for errors."""

    path: str | None = None
    text: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Tls:
    """How to encrypt, whom to trust and what to show."""

    trusted: Pem | None = None
    """The authorities that may vouch for a broker; without them, those of the operating system."""

    certificate: Pem | None = None
    """What we show to a broker that asks who we are."""

    key: Pem | None = None
    """The key of `certificate`; without it, the key is in the same place."""

    key_password: str | None = field(default=None, repr=False)

    verify: bool = True
    """Whether a broker has to show a certificate of somebody trusted. Without, anybody can listen in."""

    check_host: bool = True
    """Whether it has to be a certificate for the name that we connect to."""

    versions: tuple[str, ...] = ()
    """Of `TLS_VERSIONS`, those that are allowed; empty means all."""


@dataclass(frozen=True, kw_only=True)
class Security:
    """What a connection does before the first request. The default is nothing."""

    tls: Tls | None = None
    login: Login | None = None

    @property
    def protocol(self) -> str:
        """The value of `security.protocol` that this is."""
        transport = "PLAINTEXT" if self.tls is None else "SSL"
        return transport if self.login is None else f"SASL_{transport}"

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Security:
        """From a client's settings. Those that are not about security are left to others.

        Raises `ConfigError` for a setting that is unknown, contradicts another or would have no effect.
        """
        own = {name: value for name, value in settings.items() if name.startswith(PREFIXES)}
        if unknown := [name for name in own if name not in SECURITY_SETTINGS]:
            raise ConfigError(f"there is no security setting {unknown[0]!r} here{nearest(unknown[0])}")
        protocol = _one_of("security.protocol", own.get("security.protocol") or "PLAINTEXT", PROTOCOLS)
        _refuse_idle(own, protocol)
        return cls(
            tls=_tls(own) if protocol.endswith("SSL") else None,
            login=_login(own) if protocol.startswith("SASL_") else None,
        )


PLAINTEXT: Final = Security()


def nearest(name: str, names: Iterable[str] = SECURITY_SETTINGS) -> str:
    """The end of a sentence about an unknown name: `; did you mean 'ssl.ca.location'?`, or nothing."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def _refuse_idle(own: Mapping[str, str], protocol: str) -> None:
    """A setting without effect: better an error than a false belief."""
    for names, takes_effect, others in (
        (TLS_SETTINGS, protocol.endswith("SSL"), "SSL or SASL_SSL"),
        (SASL_SETTINGS, protocol.startswith("SASL_"), "SASL_PLAINTEXT or SASL_SSL"),
    ):
        idle = [name for name in own if name in names]
        if idle and not takes_effect:
            raise ConfigError(f"{idle[0]} has no effect with security.protocol={protocol}: it takes {others}")


def _login(own: Mapping[str, str]) -> Login:
    mechanism = _mechanism(own)
    username, password = own.get("sasl.username"), own.get("sasl.password")
    if own.get("sasl.jaas.config"):
        module_speaks, jaas_username, jaas_password = jaas_login(own["sasl.jaas.config"])
        if mechanism not in module_speaks:
            raise ConfigError(
                f"sasl.jaas.config names a login module for {' and '.join(module_speaks)}, and sasl.mechanism is "
                f"{mechanism}"
            )
        if (username or jaas_username, password or jaas_password) != (jaas_username, jaas_password):
            raise ConfigError("sasl.jaas.config and sasl.username or sasl.password contradict each other: keep one")
        username, password = jaas_username, jaas_password
    if not username or not password:
        missing = "sasl.password" if username else "sasl.username"
        raise ConfigError(f"{missing} is missing: a login takes sasl.username and sasl.password, or sasl.jaas.config")
    if "\0" in username or "\0" in password:
        raise ConfigError("sasl.username and sasl.password cannot contain a zero byte")
    return Login(mechanism=mechanism, username=username, password=password)


def _mechanism(own: Mapping[str, str]) -> str:
    java, librdkafka = own.get("sasl.mechanism"), own.get("sasl.mechanisms")
    if java and librdkafka and java.upper() != librdkafka.upper():
        raise ConfigError(f"sasl.mechanism={java} and sasl.mechanisms={librdkafka} contradict each other: keep one")
    if not (chosen := java or librdkafka):
        raise ConfigError(f"sasl.mechanism is missing: {_either(MECHANISMS)}")
    return _one_of("sasl.mechanism" if java else "sasl.mechanisms", chosen, MECHANISMS)


def _tls(own: Mapping[str, str]) -> Tls:
    _refuse_stores(own)
    certificate, key = _pem(own, CERTIFICATE_SETTINGS), _pem(own, KEY_SETTINGS)
    idle = [name for name in (*KEY_SETTINGS, "ssl.key.password") if own.get(name)]
    if idle and certificate is None:
        raise ConfigError(f"{idle[0]} has no effect without a certificate: set ssl.certificate.location as well")
    if certificate and key and certificate.setting == "ssl.keystore.location":
        raise ConfigError(f"ssl.keystore.location holds the key too, and contradicts {key.setting}: keep one")
    verify = _verify(own)
    return Tls(
        trusted=_pem(own, TRUST_SETTINGS),
        certificate=certificate,
        key=key,
        key_password=own.get("ssl.key.password") or None,
        verify=verify,
        check_host=_check_host(own, verify),
        versions=_versions(own.get("ssl.enabled.protocols", "")),
    )


def _verify(own: Mapping[str, str]) -> bool:
    name = "enable.ssl.certificate.verification"
    return _one_of(name, (own.get(name) or "true").lower(), ("true", "false")) == "true"


def _check_host(own: Mapping[str, str], verify: bool) -> bool:
    """Java turns the check off with nothing, librdkafka with `none`."""
    name = "ssl.endpoint.identification.algorithm"
    if name not in own:
        return verify
    wanted = _one_of(name, own[name].lower() or "none", ("https", "none")) == "https"
    if wanted and not verify:
        raise ConfigError(f"{name}=https cannot be had with enable.ssl.certificate.verification=false: keep one")
    return wanted


def _versions(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    return tuple(_one_of("ssl.enabled.protocols", name, TLS_VERSIONS) for name in names)


def _pem(own: Mapping[str, str], names: Iterable[str]) -> Pem | None:
    given = [name for name in names if own.get(name)]
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} contradict each other: keep one")
    if not given:
        return None
    (name,) = given
    return Pem(setting=name, path=own[name]) if name.endswith(".location") else Pem(setting=name, text=own[name])


def _refuse_stores(own: Mapping[str, str]) -> None:
    """PEM is the one form that Python reads."""
    for store in ("ssl.truststore", "ssl.keystore"):
        kind = own.get(f"{store}.type", "PEM").upper()
        if kind != "PEM":
            convert = f"{CONVERT_JKS}, then {CONVERT_PKCS12}" if kind == "JKS" else CONVERT_PKCS12
            raise ConfigError(f"{store}.type={kind} cannot be read here, only PEM. Convert it with: {convert}")
        if own.get(f"{store}.password"):
            raise ConfigError(
                f"{store}.password has no effect: only PEM is read here, where a key alone may have a password "
                f"(ssl.key.password). Convert a store with: {CONVERT_PKCS12}"
            )


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """The allowed value that this is, in whatever case it was written."""
    for each in allowed:
        if each.upper() == value.strip().upper():
            return each
    raise ConfigError(f"{name}={value} is not supported: {_either(allowed)}")


def _either(names: tuple[str, ...]) -> str:
    return f"it is {', '.join(names[:-1])} or {names[-1]}"
