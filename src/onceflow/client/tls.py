"""TLS for one connection: from settings to a context, a handshake with a deadline, and its failures as sentences.

- Certificates are checked against `trusted`, else against those that the operating system trusts, and the broker's
  name against the certificate; either check ends only if a setting says so.
- Files are read anew for each connection: a certificate that was renewed on disk is used from the next one on.
- Nothing ever asks at the terminal: an encrypted key without its password is an error.

Imported only when TLS is asked for: Python's `ssl` is slow to load.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onceflow.client.addresses import Address
from onceflow.client.security import CONVERT_JKS, CONVERT_PKCS12, Pem, Tls
from onceflow.errors import ConfigError

__all__ = ["ASKS_FOR_CERTIFICATE", "NotTrusted", "TlsCutShort", "context", "refusal", "shaken_hands", "well_formed"]

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

# What OpenSSL calls a certificate for another name, and for another IP address.
WRONG_NAME_CODES: Final = frozenset({62, 64})
ASKS_FOR_CERTIFICATE: Final = "If it asks for a client certificate, set ssl.certificate.location and ssl.key.location"
"""Java says "bad certificate" if none is shown, OpenSSL "certificate required" or "handshake failure"; and either may
hang up before we have read it."""
NO_TLS_REASONS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})


class NotTrusted(Exception):
    """One side does not accept the other. The message is a sentence; trying again would change nothing."""


class TlsCutShort(Exception):
    """The connection ended in the middle of the handshake, without a word."""


def shaken_hands(connected: socket.socket, address: Address, tls: Tls, timeout_s: float) -> ssl.SSLSocket:
    """The same connection, encrypted. On any failure it is closed.

    Raises `ConfigError`, `NotTrusted`, `TlsCutShort`, `TimeoutError`.
    """
    try:
        encrypted = context(tls).wrap_socket(connected, server_hostname=address.host, do_handshake_on_connect=False)
    except BaseException:
        connected.close()
        raise
    try:
        encrypted.settimeout(timeout_s)
        encrypted.do_handshake()  # the timeout is for all of it
    except BaseException as problem:
        encrypted.close()
        if not isinstance(problem, OSError) or isinstance(problem, TimeoutError):
            raise
        if said := refusal(address, tls, problem):
            raise NotTrusted(said) from None
        raise TlsCutShort from None
    return encrypted


def refusal(address: Address, tls: Tls, problem: OSError) -> str | None:
    """Why one side does not accept the other, and which setting would help; None if the connection just ended.

    Also for the first read after the handshake: in TLS 1.3 we are done with it before the broker has looked at our
    certificate.
    """
    if not isinstance(problem, ssl.SSLError) or isinstance(problem, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return None
    if isinstance(problem, ssl.SSLCertVerificationError):
        return _why_not_trusted(address, problem)
    reason = problem.reason or ""
    if reason in NO_TLS_REASONS:
        return f"the broker at {address} does not speak TLS at this port: another port, or another security.protocol?"
    if "ALERT" in reason:
        said = f"the broker at {address} refused the TLS connection: {_words(reason.partition('ALERT_')[2] or reason)}"
        return f"{said}. {ASKS_FOR_CERTIFICATE}" if tls.certificate is None else said
    return f"TLS with the broker at {address} failed: {_words(reason) or problem.strerror or 'no reason was given'}"


def _why_not_trusted(address: Address, problem: ssl.SSLCertVerificationError) -> str:
    if problem.verify_code in WRONG_NAME_CODES:
        return (
            f"the certificate of the broker at {address} is not for {address.host}: connect by the name that it is "
            f'for, or set ssl.endpoint.identification.algorithm to "" if any name will do'
        )
    return (
        f"the certificate of the broker at {address} is not trusted here ({problem.verify_message}): "
        f"name the file of its CA with ssl.ca.location"
    )


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()


def context(tls: Tls) -> ssl.SSLContext:
    """Raises `ConfigError` for a file that cannot be read or is something else."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version, made.maximum_version = _bounds(tls.versions)
    made.check_hostname = tls.check_host
    made.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    if tls.trusted is not None:
        _trust(made, tls.trusted)
    elif tls.verify:
        made.load_default_certs()
    if tls.certificate is not None:
        _show(made, tls.certificate, tls.key, tls.key_password)
    return made


def _bounds(names: tuple[str, ...]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    chosen = [VERSIONS[name] for name in names or VERSIONS]
    return min(chosen), max(chosen)


def _trust(made: ssl.SSLContext, trusted: Pem) -> None:
    try:
        if trusted.path is None:
            made.load_verify_locations(cadata=well_formed(trusted.text or ""))
        elif os.path.isdir(trusted.path):
            made.load_verify_locations(capath=trusted.path)
        else:
            made.load_verify_locations(cafile=trusted.path)
    except (ssl.SSLError, ValueError):  # the latter for an empty text
        raise ConfigError(_not_pem(trusted, "certificate")) from None
    except OSError as problem:
        raise ConfigError(_unreadable(trusted, problem)) from None


def _show(made: ssl.SSLContext, certificate: Pem, key: Pem | None, key_password: str | None) -> None:
    """Makes `certificate` the one that we show. Without `key`, it is in the same place."""

    def password() -> str:
        if key_password is None:
            raise ConfigError(f"the key in {(key or certificate).setting} is encrypted: set ssl.key.password")
        return key_password

    with _as_file(certificate) as certificate_path, _as_file(key) as key_path:
        try:
            made.load_cert_chain(certificate_path or "", key_path, password)
        except ssl.SSLError as problem:
            raise ConfigError(_why_not_shown(certificate, key, key_password, problem)) from None
        except OSError as problem:
            for pem in (certificate, *([key] if key else [])):
                if pem.path is not None and not os.access(pem.path, os.R_OK):
                    raise ConfigError(_unreadable(pem, problem)) from None
            raise


def _why_not_shown(certificate: Pem, key: Pem | None, key_password: str | None, problem: ssl.SSLError) -> str:
    if problem.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {(key or certificate).setting} does not belong to the certificate in {certificate.setting}"
    if key_password is not None and "ENCRYPTED" in _content(key or certificate):
        return f"ssl.key.password does not open the key in {(key or certificate).setting}"
    for pem, what in ((certificate, "certificate"), (key or certificate, "key")):
        if not re.search(rf"-----BEGIN [A-Z0-9 ]*{what.upper()}", _content(pem)):
            return _not_pem(pem, what)
    reason = _words(problem.reason or "no reason was given")
    return f"the certificate in {certificate.setting} cannot be used: {reason}"


def _content(pem: Pem) -> str:
    if pem.path is None:
        return pem.text or ""
    return Path(pem.path).read_bytes().decode("latin-1")


def _not_pem(pem: Pem, what: str) -> str:
    said = f"{pem.setting} holds no {what} in PEM form"
    if pem.path is None:
        return said
    start = Path(pem.path).read_bytes()[:4]
    if start == b"\xfe\xed\xfe\xed":
        return f"{said}: {pem.path} is a JKS store. Convert it with: {CONVERT_JKS}, then {CONVERT_PKCS12}"
    if start[:1] == b"\x30":
        return f"{said}: {pem.path} is a PKCS12 store or in DER form. Convert a store with: {CONVERT_PKCS12}"
    return f"{said}: {pem.path}"


def _unreadable(pem: Pem, problem: OSError) -> str:
    return f"{pem.setting}: cannot read {pem.path}: {(problem.strerror or str(problem)).lower()}"


@contextlib.contextmanager
def _as_file(pem: Pem | None) -> Iterator[str | None]:
    """OpenSSL takes keys from files only: text lies in one that nobody else can read, for as long as it takes."""
    if pem is None or pem.path is not None:
        yield None if pem is None else pem.path
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
        file.write(well_formed(pem.text or ""))
        file.flush()
        yield file.name


_PEM_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


def well_formed(text: str) -> str:
    """PEM with its line breaks. Java takes it on one line, as it comes out of a properties file; OpenSSL does not."""
    return "".join(_block(*found.groups()) for found in _PEM_BLOCK.finditer(text))


def _block(label: str, body: str) -> str:
    if ":" not in body:  # with header fields it is of the old encrypted kind, where the lines matter
        body = "\n" + "\n".join(textwrap.wrap("".join(body.split()), 64)) + "\n"
    return f"-----BEGIN {label}-----{body}-----END {label}-----\n"
