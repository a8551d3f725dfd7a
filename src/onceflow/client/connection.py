"""One socket to one broker, and requests over it, one at a time.

For what librdkafka has no function for: the requests about transactions, and producing with an id and an epoch of
one's own. Small on purpose:

- The version of a request is the highest that both sides know (ApiVersions, asked once per connection). `at_most`
  holds it down where the version decides which protocol applies, as with EndTxn and Produce (KIP-890).
- Nothing is ever sent twice. Whoever calls knows what a repetition would do; the error says what is known:
  `Unreachable`, `NotAdmitted` and `ApiMissing`: nothing was sent. `NoAnswer`: it was sent, perhaps in part, and may
  have been done.
- Every wait has an end: connecting and each exchange have a deadline for the whole of it, not one per read. TLS and
  the login (`security`) are part of connecting.
- A login that ends after a while (KIP-368) is repeated before the next request, on the same connection.
- An answer is limited to `ANSWER_BYTES_MAX`. After anything unexpected the connection is closed, since what comes
  next on it could be the answer to something else.

Not safe for threads: an exchange belongs to whoever began it.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from types import TracebackType
from typing import Any, Final

from onceflow.client.addresses import Address, why_not_reached
from onceflow.client.problems import ClientError
from onceflow.client.sasl import Login, LoginBroken
from onceflow.client.security import PLAINTEXT, Security, Tls
from onceflow.errors import ErrorCode, MalformedMessage
from onceflow.wire import codec
from onceflow.wire.messages import REQUESTS, request_is_flexible, response_class
from onceflow.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from onceflow.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from onceflow.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from onceflow.wire.primitives import skip_tags
from onceflow.wire.schema import Message

__all__ = ["ANSWER_BYTES_MAX", "ApiMissing", "Connection", "NoAnswer", "NotAdmitted", "NotKafka", "Unreachable"]

ANSWER_BYTES_MAX: Final = 100 * 1024 * 1024  # Kafka's own limit for requests; no answer asked for here comes near it
CLIENT_ID_DEFAULT: Final = "onceflow"
SOFTWARE_NAME: Final = "onceflow"
SOFTWARE_VERSION: Final = "client"

LOGIN_AGAIN_AFTER: Final = 0.85  # of a login's lifetime, as in Kafka's own client
PIECE_BYTES: Final = 1 << 20
TLS_ALERT: Final = 0x1503  # how a refusal begins: kind of record, and the version that all versions name

_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")


class Unreachable(ClientError):
    """No connection could be made: nothing was sent."""


class NotAdmitted(ClientError):
    """The broker does not let us in, or we do not trust it: nothing was sent, and trying again changes nothing."""


class NoAnswer(ClientError):
    """The request was sent, perhaps not all of it, and no answer came: it may have been done or not."""


class NotKafka(NoAnswer):
    """The first answer on a connection was not one of Kafka's protocol: most likely the address is that of another
    program."""


class ApiMissing(ClientError):
    """The broker does not know this request, or no version of it that we know: nothing was sent."""


class _SpeaksTls(MalformedMessage):
    """What came is not an answer but the beginning of TLS."""


class Connection:
    """A connection to the broker at `address`.

    Raises at once `Unreachable` if nobody accepts it there, `NotAdmitted` if TLS or the login fails, and `ConfigError`
    for certificates that cannot be read.
    """

    def __init__(
        self,
        address: Address,
        *,
        timeout_s: float,
        client_id: str = CLIENT_ID_DEFAULT,
        security: Security = PLAINTEXT,
    ) -> None:
        self.address = address
        self.timeout_s = timeout_s
        self._client_id = client_id
        self._security = security
        self._correlation_ids = itertools.count(1)
        self._versions: dict[int, tuple[int, int]] | None = None
        self._features: dict[str, int] = {}
        self._was_answered = False
        self._log_in_at: float | None = None
        deadline = time.monotonic() + timeout_s
        try:
            self._socket: socket.socket | None = socket.create_connection(address, timeout=timeout_s)
        except (OSError, UnicodeError) as problem:
            reason = why_not_reached(problem, timeout_s)
            raise Unreachable(f"cannot reach the broker at {address}: {reason}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security.tls is not None:
            self._encrypt(security.tls, deadline)
        if security.protocol != "PLAINTEXT":
            self._be_admitted(deadline)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def close(self) -> None:
        """May be called again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def ask(self, request: Message, *, at_most: int | None = None, timeout_s: float | None = None) -> Any:
        """The answer to a request, whose error codes are the caller's to look at.

        A field that the chosen version lacks is left out: where that matters, look at `version` first.
        """
        version = self.version(type(request), at_most=at_most)
        if self._log_in_at is not None and time.monotonic() >= self._log_in_at:
            self._be_admitted(time.monotonic() + self.timeout_s)
        answer = self._exchange(request, version, self.timeout_s if timeout_s is None else timeout_s)
        self._was_answered = True
        return answer

    def version(self, request: type[Message], *, at_most: int | None = None) -> int:
        """The version in which `ask` would send such a request. Raises `ApiMissing`."""
        assert request.API_KEY is not None
        assert request.VERSIONS is not None
        name = REQUESTS[request.API_KEY].request.removesuffix("Request")
        announced = self.versions().get(request.API_KEY)
        if announced is None:
            raise ApiMissing(f"the broker at {self.address} does not know {name}: it is too old, or made differently")
        lowest = max(request.VERSIONS[0], announced[0])
        highest = min(request.VERSIONS[1], announced[1])
        if at_most is not None:
            highest = min(highest, at_most)
        if highest < lowest:
            raise ApiMissing(
                f"the broker at {self.address} knows {name} in the versions {announced[0]} to {announced[1]} only, "
                f"which is too old or too new for this program"
            )
        return highest

    def versions(self) -> dict[int, tuple[int, int]]:
        """First and last version of every request that the broker announces, by api key."""
        if self._versions is None:
            self._introduce(self.timeout_s)
        assert self._versions is not None
        return self._versions

    def features(self) -> dict[str, int]:
        """The levels of the cluster's finalized features, such as `transaction.version`."""
        self.versions()
        return self._features

    def _encrypt(self, tls: Tls, deadline: float) -> None:
        from onceflow.client.tls import NotTrusted, TlsCutShort, shaken_hands

        connected, self._socket = self._socket, None  # whatever goes wrong, it is closed by then
        assert connected is not None
        try:
            self._socket = shaken_hands(connected, self.address, tls, max(deadline - time.monotonic(), 0.001))
        except NotTrusted as problem:
            raise NotAdmitted(str(problem)) from None
        except TlsCutShort:
            raise Unreachable(
                f"the broker at {self.address} ended the connection in the middle of the TLS handshake: "
                f"does it speak TLS at this port? It does not where security.protocol is PLAINTEXT or SASL_PLAINTEXT"
            ) from None
        except TimeoutError:
            raise Unreachable(
                f"the broker at {self.address} did not finish the TLS handshake within {self.timeout_s:g} s: "
                f"does it speak TLS at this port?"
            ) from None

    def _be_admitted(self, deadline: float) -> None:
        """Hears what the broker knows and logs in, if that is asked for. On any failure the connection is closed."""
        try:
            if self._versions is None:
                self._introduce(_left(deadline))
            if self._security.login is not None:
                self._log_in(self._security.login, deadline)
        except NotKafka:  # it will not become one
            raise
        except (NoAnswer, TimeoutError) as problem:  # but nothing of the caller's was sent
            self.close()
            late = f"the broker at {self.address} did not finish the login within {self.timeout_s:g} s"
            raise Unreachable(late if isinstance(problem, TimeoutError) else str(problem)) from None
        except BaseException:
            self.close()
            raise

    def _log_in(self, login: Login, deadline: float) -> None:
        """SaslHandshake, and as many SaslAuthenticate as the mechanism takes."""
        self._agree_on(login.mechanism, deadline)
        version = self.version(SaslAuthenticateRequest)
        said = login.conversation()
        message = next(said)
        while True:
            question = SaslAuthenticateRequest(auth_bytes=message)
            answer: SaslAuthenticateResponse = self._exchange(question, version, _left(deadline))
            if answer.error_code != ErrorCode.NONE:
                reason = answer.error_message or f"error {answer.error_code}"
                raise NotAdmitted(
                    f"the broker at {self.address} does not accept the login of {login.username!r} "
                    f"({login.mechanism}): {reason}"
                )
            try:
                message = said.send(answer.auth_bytes)
            except StopIteration:
                break
            except LoginBroken as problem:
                raise NotAdmitted(f"the login at the broker at {self.address} failed: {problem}") from None
        lifetime_s = answer.session_lifetime_ms / 1000
        self._log_in_at = time.monotonic() + lifetime_s * LOGIN_AGAIN_AFTER if lifetime_s > 0 else None

    def _agree_on(self, mechanism: str, deadline: float) -> None:
        no_logins = f"the broker at {self.address} takes no logins at this port: is security.protocol right?"
        try:
            version = self.version(SaslHandshakeRequest)
        except ApiMissing:
            raise NotAdmitted(no_logins) from None
        question = SaslHandshakeRequest(mechanism=mechanism)
        answer: SaslHandshakeResponse = self._exchange(question, version, _left(deadline))
        if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(answer.mechanisms) or "none"
            raise NotAdmitted(f"the broker at {self.address} does not take {mechanism} at this port, but: {offered}")
        if answer.error_code == ErrorCode.ILLEGAL_SASL_STATE:
            raise NotAdmitted(no_logins)
        if answer.error_code != ErrorCode.NONE:
            raise NotAdmitted(f"the broker at {self.address} takes no login: error {answer.error_code}")

    def _introduce(self, timeout_s: float) -> None:
        """Asks for the versions. A broker that does not know our newest way to ask says which it knows (KIP-511)."""
        assert ApiVersionsRequest.VERSIONS is not None
        question = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=SOFTWARE_VERSION)
        newest = ApiVersionsRequest.VERSIONS[1]
        answer: ApiVersionsResponse = self._exchange(question, newest, timeout_s)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            known = [each.max_version for each in answer.api_keys if each.api_key == ApiVersionsRequest.API_KEY]
            answer = self._exchange(question, min([*known, newest - 1]) if known else 0, timeout_s)
        if answer.error_code != ErrorCode.NONE:
            self.close()
            raise ClientError(f"the broker at {self.address} does not say what it knows: error {answer.error_code}")
        self._versions = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
        self._features = {each.name: each.max_version_level for each in answer.finalized_features}

    def _exchange(self, request: Message, version: int, timeout_s: float) -> Any:
        assert request.API_KEY is not None
        correlation_id = next(self._correlation_ids)
        header = codec.request_header(type(request), version, correlation_id, self._client_id)
        frame = [header, *codec.encode_parts(request, version)]
        connected = self._socket
        if connected is None:
            raise Unreachable(f"the connection to the broker at {self.address} is closed")
        deadline = time.monotonic() + timeout_s
        try:
            _send(connected, frame, deadline)
            answer = _receive(connected, deadline)
            return _decode(answer, request.API_KEY, version, correlation_id)
        except TimeoutError:
            self.close()
            raise NoAnswer(f"the broker at {self.address} did not answer within {timeout_s:g} s") from None
        except _SpeaksTls:
            self.close()
            raise NotAdmitted(
                f"the broker at {self.address} speaks TLS at this port: set security.protocol to SSL or SASL_SSL"
            ) from None
        except MalformedMessage as problem:
            self.close()
            kind = NotKafka if self._versions is None else NoAnswer  # a Kafka broker has told its versions
            raise kind(f"somebody listens at {self.address}, but not a Kafka broker it seems: {problem}") from None
        except OSError as problem:
            self.close()
            raise self._ended(problem) from None
        except BaseException:  # interrupted in the middle: the answer would be taken for the next one's
            self.close()
            raise

    def _ended(self, problem: OSError) -> ClientError:
        """What to say of a connection that ended instead of an answer."""
        if self._versions is None and self._security.tls is not None:
            from onceflow.client.tls import refusal

            if said := refusal(self.address, self._security.tls, problem):
                return NotAdmitted(said)
        reason = (problem.strerror or str(problem)).partition(" (_ssl.c")[0].lower()
        hint = "" if self._was_answered else self._hint()
        return NoAnswer(f"the broker at {self.address} ended the connection without an answer: {reason}{hint}")

    def _hint(self) -> str:
        """A broker says nothing to whoever speaks another protocol: it hangs up, early."""
        protocol = self._security.protocol
        if self._versions is None and self._security.tls is None:
            return f". If it speaks TLS at this port, security.protocol={protocol} is wrong"
        if self._versions is None and self._security.tls is not None and self._security.tls.certificate is None:
            from onceflow.client.tls import ASKS_FOR_CERTIFICATE

            return f". {ASKS_FOR_CERTIFICATE}"
        if self._versions is not None and self._security.login is None:
            return f". If it asks for a login at this port, security.protocol={protocol} is wrong"
        return ""


def _send(connected: socket.socket, frame: list[Any], deadline: float) -> None:
    length = sum(len(part) for part in frame)
    data = b"".join([_INT32.pack(length), *frame])
    connected.settimeout(_left(deadline))
    if type(connected) is socket.socket:
        connected.sendall(data)  # the timeout of sendall is for all of it
    else:
        _send_pieces(connected, memoryview(data), deadline)


def _send_pieces(encrypted: socket.socket, data: memoryview, deadline: float) -> None:
    """As `sendall` of a plain socket does it; that of a TLS socket takes the timeout once more for every piece."""
    while data:
        data = data[encrypted.send(data) :]
        encrypted.settimeout(_left(deadline))


def _receive(connected: socket.socket, deadline: float) -> bytearray:
    (length,) = _INT32.unpack(_read(connected, 4, deadline))
    if not 4 <= length <= ANSWER_BYTES_MAX:
        if length >> 16 == TLS_ALERT:
            raise _SpeaksTls
        raise MalformedMessage(f"An answer of {length} bytes cannot be.")
    return _read(connected, length, deadline)


def _read(connected: socket.socket, length: int, deadline: float) -> bytearray:
    """Into one buffer, which grows with what comes and not with what was announced."""
    data = bytearray(min(length, PIECE_BYTES))
    read = 0
    while read < length:
        if read == len(data):
            data += bytes(min(length, 4 * read) - read)
        connected.settimeout(_left(deadline))
        with memoryview(data) as room:
            count = connected.recv_into(room[read:])
        if not count:
            raise ConnectionResetError("it was closed")
        read += count
    return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _decode(frame: bytearray, api_key: int, version: int, correlation_id: int) -> Any:
    (answered,) = _INT32.unpack_from(frame)
    if answered != correlation_id:
        raise MalformedMessage(f"The answer is to request {answered}, and the question was {correlation_id}.")
    if api_key == ApiVersionsRequest.API_KEY:
        # Its header is the old one in all versions, and the refusal of a version comes in version 0.
        refused = frame[4:6] == _INT16.pack(ErrorCode.UNSUPPORTED_VERSION)
        return codec.decode(response_class(api_key), 0 if refused else version, frame, 4)
    return codec.decode(response_class(api_key), version, frame, _body_at(frame, api_key, version))


def _body_at(frame: bytearray, api_key: int, version: int) -> int:
    if not request_is_flexible(api_key, version):
        return 4
    try:
        return skip_tags(frame, 4, len(frame))
    except IndexError:
        raise MalformedMessage("The header of an answer is cut short.") from None
