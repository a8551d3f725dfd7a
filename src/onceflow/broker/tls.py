"""TLS of the broker, from its settings. Mistakes are one sentence, at the start."""

from __future__ import annotations

import logging
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from onceflow.broker.certificates import MalformedCertificate, expires_at, first_certificate
from onceflow.config import BrokerConfig
from onceflow.errors import ConfigError

__all__ = ["server_context"]

logger = logging.getLogger(__name__)

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
KEYSTORE, TRUSTSTORE = "ssl.keystore.location", "ssl.truststore.location"


def server_context(config: BrokerConfig) -> ssl.SSLContext:
    """Raises `ConfigError`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    chosen = [VERSIONS[name] for name in config["ssl.enabled.protocols"] or VERSIONS]
    context.minimum_version, context.maximum_version = min(chosen), max(chosen)
    # Keeps nothing per client between connections, and spares who never comes back the tickets.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _show(context, config)
    context.verify_mode = CLIENT_AUTH[config["ssl.client.auth"]]
    if context.verify_mode is not ssl.CERT_NONE:
        _trust(context, config[TRUSTSTORE])
    return context


def _show(context: ssl.SSLContext, config: BrokerConfig) -> None:
    path = config[KEYSTORE]
    if not path:
        raise ConfigError(f"TLS needs a key and a certificate: name a PEM file with both in {KEYSTORE}.")
    content = _content(KEYSTORE, path)
    password = config["ssl.key.password"]

    def key_password() -> str:
        if not password:
            raise ConfigError(f"The key in {path} is encrypted: set ssl.key.password, in a file that --config names.")
        return str(password)

    try:
        context.load_cert_chain(path, password=key_password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(_why_not(path, content, bool(password), error)) from None
    _warn_if_expired(path, content)


def _why_not(path: str, content: str, has_password: bool, error: ssl.SSLError | ValueError) -> str:
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return f"The key in {path} does not belong to the certificate in it ({KEYSTORE}); the certificate comes first."
    for what in ("PRIVATE KEY", "CERTIFICATE"):
        if f"{what}-----" not in content:
            return f"{path} holds no {what.lower()} in PEM form ({KEYSTORE})."
    if has_password and "ENCRYPTED" in content:
        return f"ssl.key.password does not open the key in {path}."
    return f"{path} cannot be used for TLS ({KEYSTORE}): {getattr(error, 'reason', None) or error}."


def _warn_if_expired(path: str, content: str) -> None:
    try:
        certificate = first_certificate(content)
        ends = expires_at(certificate) if certificate is not None else None
    except (MalformedCertificate, ValueError):
        return
    if ends is not None and ends < datetime.now(UTC):
        logger.warning("The certificate in %s expired on %s: clients will not accept it.", path, f"{ends:%Y-%m-%d}")


def _trust(context: ssl.SSLContext, path: str) -> None:
    if not path:
        raise ConfigError(
            f"ssl.client.auth asks clients for certificates: name the PEM file of who vouches for them in {TRUSTSTORE}."
        )
    content = _content(TRUSTSTORE, path)
    try:
        context.load_verify_locations(cadata=content)
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{path} holds no certificate in PEM form ({TRUSTSTORE}).") from None


def _content(setting: str, path: str) -> str:
    try:
        return Path(path).read_text("latin-1")
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}.") from None
