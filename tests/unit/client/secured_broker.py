"""A `FakeBroker` behind TLS, and one that asks for a login."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ssl
from typing import Any

from onceflow.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from tests.support.secured_kafka import Certificates
from tests.unit.client.fake_broker import FakeBroker

__all__ = ["LoginBroker", "TlsBroker"]


class TlsBroker(FakeBroker):
    """Shows the server's certificate; with `asks`, whoever comes has to show one too."""

    def __init__(self, certificates: Certificates, *, asks: bool = False) -> None:
        super().__init__()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificates.server)
        if asks:
            self._context.load_verify_locations(certificates.ca)
            self._context.verify_mode = ssl.CERT_REQUIRED

    def _serve(self, connection: Any) -> None:
        # A client that does not like our certificate leaves in the middle of the handshake.
        with contextlib.suppress(OSError), self._context.wrap_socket(connection, server_side=True) as encrypted:
            self._serve_encrypted(encrypted)

    def _serve_encrypted(self, encrypted: ssl.SSLSocket) -> None:
        super()._serve(encrypted)


class LoginBroker(FakeBroker):
    """Takes SCRAM-SHA-256 logins of `me`, whose password it knows or only pretends to know."""

    def __init__(self, password: str = "secret", *, lifetime_ms: int = 0) -> None:
        super().__init__()
        self._password = password
        self._lifetime_ms = lifetime_ms
        self._salted = b""
        self._said: list[str] = []
        self.mechanisms = ["SCRAM-SHA-256"]
        self.on(SaslHandshakeRequest, self._handshake)
        self.on(SaslAuthenticateRequest, self._authenticate)

    def _handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        self._said = []
        code = 0 if request.mechanism in self.mechanisms else 33
        return SaslHandshakeResponse(error_code=code, mechanisms=self.mechanisms)

    def _authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        message = request.auth_bytes.decode()
        answer = self._challenge(message) if not self._said else self._signature(message)
        return SaslAuthenticateResponse(auth_bytes=answer.encode(), session_lifetime_ms=self._lifetime_ms)

    def _challenge(self, message: str) -> str:
        nonce = message.rpartition("r=")[2]
        self._salted = hashlib.pbkdf2_hmac("sha256", self._password.encode(), b"salt", 4096)
        self._said = [message.removeprefix("n,,"), f"r={nonce}more,s={base64.b64encode(b'salt').decode()},i=4096"]
        return self._said[1]

    def _signature(self, message: str) -> str:
        signed = ",".join([*self._said, message.rpartition(",p=")[0]]).encode()
        key = hmac.digest(self._salted, b"Server Key", "sha256")
        return f"v={base64.b64encode(hmac.digest(key, signed, 'sha256')).decode()}"
