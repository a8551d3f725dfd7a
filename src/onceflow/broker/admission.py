"""One connection's way in, where the listener asks for a login (KIP-43, 152, 368).

    ApiVersions*, SaslHandshake, SaslAuthenticate+ -> everything else

- Nothing else is answered before the login is done. Any other request ends the connection, as with Apache Kafka.
- After SaslHandshake v0 the tokens come as they are, without a header; that is how clients of Kafka 0.10 do it.
- While a password is checked, in a thread, the connection is not read: what follows waits, and nobody else does. How
  many checks may wait is bounded.
- Who fails is answered after a while, and then the connection is closed.
- With `connections.max.reauth.ms` a login ends, and a client that has not logged in again by then loses its connection
  with the next request. It may not come back as somebody else, nor by another mechanism.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol

from onceflow.broker import handlers
from onceflow.broker.authentication import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    Mechanism,
    PasswordCheck,
    mechanism_named,
)
from onceflow.broker.certificates import MalformedCertificate, subject
from onceflow.broker.complaints import complain
from onceflow.broker.deferred import Answer, Deferred
from onceflow.errors import ErrorCode, MalformedMessage
from onceflow.wire.codec import RequestHeader, decode_from
from onceflow.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from onceflow.broker.node import Node

__all__ = ["Admission", "NotLoggedIn", "PasswordChecks", "Token", "certified_principal"]

SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
WITH_HEADERS_FROM_VERSION: Final = 1
CHECKS_WAITING_MAX: Final = 256
AGAIN_AT_THE_EARLIEST_S: Final = 1.0
"""Kafka's: who logs in again more often is refused."""


Outcome = Accepted | AuthenticationFailed


class Token(bytes):
    """An answer that has no header."""


class PasswordChecks:
    """Checks passwords in one thread, so that the hashing never holds up the loop, nor takes more than one core."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="passwords")
        self._waiting = 0

    def run(self, check: Callable[[], Accepted], then: Callable[[Outcome | None], None]) -> None:
        """`then` is called on the loop; with None if too many wait already."""
        if self._waiting >= CHECKS_WAITING_MAX:
            then(None)
            return
        self._waiting += 1

        def done(future: asyncio.Future[Outcome]) -> None:
            self._waiting -= 1
            if not future.cancelled():
                then(future.result())

        asyncio.get_running_loop().run_in_executor(self._thread, _outcome, check).add_done_callback(done)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _outcome(check: Callable[[], Accepted]) -> Outcome:
    try:
        return check()
    except AuthenticationFailed as failure:
        return failure


class NotLoggedIn(MalformedMessage):
    """Only who has logged in may ask for this."""


def certified_principal(node: Node, transport: asyncio.Transport) -> str:
    """Who the certificate of the other side says that it is. Raises `MalformedMessage` if it cannot be read."""
    encrypted = transport.get_extra_info("ssl_object")
    certificate = encrypted.getpeercert(True) if encrypted is not None else None
    if certificate is None:
        return handlers.ANONYMOUS
    try:
        principal = f"User:{subject(certificate)}"
    except MalformedCertificate as error:
        node.meters.failed_authentications["SSL"] += 1
        raise MalformedMessage(f"Its certificate cannot be read: {error}.") from None
    node.meters.successful_authentications["SSL"] += 1
    return principal


class Entrant(Protocol):
    """The connection, as seen from here."""

    def close(self) -> None: ...
    def has_logged_in(self, principal: str) -> None: ...


class Admission:
    def __init__(self, node: Node, checks: PasswordChecks, entrant: Entrant, host: str) -> None:
        self._node = node
        self._host = host
        self._checks = checks
        self._entrant = entrant
        config = node.config
        self._mechanisms: tuple[str, ...] = config["sasl.enabled.mechanisms"]
        self._lifetime_ms: int = config["connections.max.reauth.ms"]
        self._delay_s: float = config["connection.failed.authentication.delay.ms"] / 1000
        self.frame_max: int = min(config["sasl.server.max.receive.size"], config["socket.request.max.bytes"])
        self._mechanism_name = ""
        self._mechanism: Mechanism | None = None
        self._headers = True
        self._user: str | None = None
        self._ends_at_s: float | None = None
        self._began_at_s: float | None = None
        self.is_done = False
        self.is_busy = False
        """An answer is being worked on, and what follows has to wait for it."""

    @property
    def expects_token(self) -> bool:
        """The next frame has no header."""
        return self._mechanism is not None and not self._headers

    def is_for_us(self, api_key: int) -> bool:
        """Whether this request is ours to answer. Raises `NotLoggedIn` for one that may not be made now."""
        if self.is_done:
            return self._begins_again(api_key)
        if self._mechanism is not None:
            if api_key in (SASL_AUTHENTICATE, SASL_HANDSHAKE):
                return True
        elif api_key == SASL_HANDSHAKE:
            return True
        elif api_key == API_VERSIONS:
            return False
        raise NotLoggedIn(f"Api key {api_key} was asked for before a login.")

    def _begins_again(self, api_key: int) -> bool:
        if self._ends_at_s is None:
            return False
        now = time.monotonic()
        if api_key == SASL_HANDSHAKE and (
            self._began_at_s is None or now - self._began_at_s >= AGAIN_AT_THE_EARLIEST_S
        ):
            self._began_at_s = now
            self.is_done = False
            return True
        if now > self._ends_at_s:
            self._node.meters.connections_refused["login expired"] += 1
            raise NotLoggedIn("The client did not log in again in time.")
        return False

    # Requests

    def answer(self, header: RequestHeader, frame: memoryview) -> Answer | Deferred:
        self._check_size(frame)
        if header.api_key == SASL_HANDSHAKE:
            if not 0 <= header.api_version <= 1:
                raise MalformedMessage(f"Version {header.api_version} of SaslHandshake is not served here.")
            asked, _ = decode_from(SaslHandshakeRequest, header.api_version, frame, header.body_at)
            return self._shake_hands(asked.mechanism, header.api_version)
        if not 0 <= header.api_version <= 2:
            raise MalformedMessage(f"Version {header.api_version} of SaslAuthenticate is not served here.")
        shown, _ = decode_from(SaslAuthenticateRequest, header.api_version, frame, header.body_at)
        return self._take(bytes(shown.auth_bytes))

    def take_token(self, frame: memoryview) -> Answer | Deferred:
        self._check_size(frame)
        return self._take(bytes(frame))

    def _check_size(self, frame: memoryview) -> None:
        """Who logs in again may send larger requests by now, but not to us."""
        if len(frame) > self.frame_max:
            raise MalformedMessage(f"A login of {len(frame)} bytes is larger than sasl.server.max.receive.size.")

    def _shake_hands(self, name: str, version: int) -> Answer | Deferred:
        if self._mechanism is not None:
            return self._refused(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        known = list(self._mechanisms)
        if name not in known or (self._mechanism_name and name != self._mechanism_name):
            refusal = SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=known)
            return self._refused(refusal)
        self._mechanism_name = name
        self._mechanism = mechanism_named(name, self._node.users)
        self._headers = version >= WITH_HEADERS_FROM_VERSION
        return Answer(SaslHandshakeResponse(mechanisms=known))

    def _take(self, token: bytes) -> Answer | Deferred:
        assert self._mechanism is not None
        try:
            step = self._mechanism.evaluate(token)
            if isinstance(step, PasswordCheck):
                return self._checked(step)
            return self._said(step.data) if isinstance(step, Challenge) else self._accepted(step)
        except AuthenticationFailed as failure:
            return self._refused(self._failure(failure))

    def _checked(self, step: PasswordCheck) -> Deferred:
        promised = Deferred()
        self.is_busy = True

        def then(outcome: Outcome | None) -> None:
            if outcome is None:
                self._node.meters.connections_refused["too many logins"] += 1
                complain("logins", "Closed connections: too many logins wait to be checked.")
                self._entrant.close()
                return
            try:
                if isinstance(outcome, AuthenticationFailed):
                    raise outcome
                answer = self._accepted(outcome)
            except AuthenticationFailed as failure:
                self._answer_late(self._failure(failure), promised)
            else:
                self.is_busy = False
                promised.resolve(answer)

        self._checks.run(step.run, then)
        return promised

    def _accepted(self, accepted: Accepted) -> Answer:
        if self._user not in (None, accepted.user):
            problem = "Cannot change principals during re-authentication"
            raise AuthenticationFailed(f"{problem} from User.{self._user}: User.{accepted.user}")
        self._user = accepted.user
        self._mechanism = None
        self._node.meters.successful_authentications[self._mechanism_name] += 1
        lifetime_ms = max(0, self._lifetime_ms)
        if lifetime_ms:
            self._ends_at_s = time.monotonic() + lifetime_ms / 1000
        self.is_done = True
        self._entrant.has_logged_in(f"User:{accepted.user}")
        return self._said(accepted.data, lifetime_ms)

    def _said(self, data: bytes, lifetime_ms: int = 0) -> Answer:
        if not self._headers:
            return Answer(Token(data))
        return Answer(SaslAuthenticateResponse(auth_bytes=data, session_lifetime_ms=lifetime_ms))

    # Refusals

    def _failure(self, failure: AuthenticationFailed) -> SaslAuthenticateResponse | None:
        name = self._mechanism_name
        self._node.meters.failed_authentications[name] += 1
        complain(f"login: {name}", "A login from %s with %s failed: %s", self._host, name, failure)
        if not self._headers:
            return None  # the old way knows no refusal: the connection ends
        return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(failure))

    def _refused(self, response: SaslHandshakeResponse | SaslAuthenticateResponse | None) -> Deferred:
        promised = Deferred()
        self.is_busy = True
        self._answer_late(response, promised)
        return promised

    def _answer_late(
        self, response: SaslHandshakeResponse | SaslAuthenticateResponse | None, promised: Deferred
    ) -> None:
        def answer() -> None:
            promised.resolve(None if response is None else Answer(response))
            self._entrant.close()

        asyncio.get_running_loop().call_later(self._delay_s, answer)
