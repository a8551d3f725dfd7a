"""What has to be known of a certificate: whom it names, and until when it holds.

Python's `ssl` tells neither of a certificate of our own. Of a client's it tells the name in words of OpenSSL, without
the types of its values; Java writes every attribute that RFC 2253 does not name with its type (`2.5.4.5=#1303313233`
is a serial number), and ACLs that come from Apache Kafka have that. So the few fields are read from the certificate
itself (DER, RFC 5280), with every length checked: a client chooses what is in its certificate, though an authority
that we trust has signed it.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from typing import Final, NamedTuple

__all__ = ["MalformedCertificate", "expires_at", "first_certificate", "subject"]

SEQUENCE, SET, OID = 0x30, 0x31, 0x06
UTC_TIME: Final = 0x17
VERSION: Final = 0xA0
TEXT_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x13: "ascii",
    0x14: "latin-1",
    0x16: "ascii",
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
OID_BYTES_MAX: Final = 64
SHORT_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Those that RFC 2253 names; any other attribute is written as its number and bytes."""

_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class MalformedCertificate(ValueError):
    """The bytes are no certificate."""


class _Value(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def first_certificate(pem: str) -> bytes | None:
    """The first certificate of a PEM file in DER form: the one that is shown; those after it vouch for it."""
    found = _PEM.search(pem)
    return ssl.PEM_cert_to_DER_cert(found.group()) if found else None


def expires_at(certificate: bytes) -> datetime:
    """Raises `MalformedCertificate`."""
    times = _inside(_fields(certificate)[3], SEQUENCE)
    ends = times[-1]
    text = ends.content.decode("ascii", "replace")
    try:
        return datetime.strptime(text, "%y%m%d%H%M%SZ" if ends.tag == UTC_TIME else "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise MalformedCertificate(f"it ends at {text!r}") from None


def subject(certificate: bytes) -> str:
    """Whom it names, as Kafka names a client by it: `CN=client,OU=data,O=Example` (RFC 2253, last attribute first).

    Raises `MalformedCertificate`.
    """
    names = _inside(_fields(certificate)[4], SEQUENCE)
    return ",".join("+".join(_attribute(each) for each in _inside(name, SET)) for name in reversed(names))


def _fields(certificate: bytes) -> list[_Value]:
    """Serial number, algorithm, issuer, validity, subject, and what follows."""
    outer = _values(certificate)
    if not outer:
        raise MalformedCertificate("it is empty")
    signed = _inside(outer[0], SEQUENCE)[0]
    fields = [each for each in _inside(signed, SEQUENCE) if each.tag != VERSION]
    if len(fields) < 5:
        raise MalformedCertificate("it lacks fields")
    return fields


def _inside(value: _Value, tag: int) -> list[_Value]:
    if value.tag != tag:
        raise MalformedCertificate(f"tag {value.tag} is not {tag}")
    found = _values(value.content)
    if not found:
        raise MalformedCertificate("it is empty where it must not be")
    return found


def _values(data: bytes) -> list[_Value]:
    values = []
    at = 0
    while at < len(data):
        start, tag = at, data[at]
        length, at = _length(data, at + 1)
        if at + length > len(data):
            raise MalformedCertificate("it is cut short")
        values.append(_Value(tag, data[at : at + length], data[start : at + length]))
        at += length
    return values


def _length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at : at + 1]
    if not first:
        raise MalformedCertificate("it is cut short")
    if first[0] < 0x80:
        return first[0], at + 1
    size = first[0] & 0x7F
    digits = data[at + 1 : at + 1 + size]
    if not 1 <= size <= 4 or len(digits) < size:
        raise MalformedCertificate("a length is not one")
    return int.from_bytes(digits, "big"), at + 1 + size


def _attribute(value: _Value) -> str:
    parts = _inside(value, SEQUENCE)
    if len(parts) != 2 or parts[0].tag != OID:
        raise MalformedCertificate("an attribute of the name is not one")
    number, shown = _oid(parts[0].content), parts[1]
    name, encoding = SHORT_NAMES.get(number), TEXT_ENCODINGS.get(shown.tag)
    if name is None or encoding is None:
        return f"{name or number}=#{shown.whole.hex()}"
    try:
        return f"{name}={_escaped(shown.content.decode(encoding))}"
    except UnicodeDecodeError:
        raise MalformedCertificate("a name is not text") from None


def _oid(content: bytes) -> str:
    if len(content) > OID_BYTES_MAX:
        raise MalformedCertificate("an attribute has a number without end")
    numbers = [0]
    for byte in content:
        numbers[-1] = numbers[-1] << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(0)
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:-1])))


def _escaped(text: str) -> str:
    """Section 2.4 of RFC 2253."""
    text = re.sub(r'([,+"\\<>;])', r"\\\1", text)
    if text[:1] in ("#", " "):
        text = "\\" + text
    return text[:-1] + "\\ " if text.endswith(" ") and text != "\\ " else text
