"""Reading a certificate: the name as Kafka has it, and the end of its life."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.certificates import MalformedCertificate, _oid, expires_at, first_certificate, subject
from tests.support.effort import examples


def made(folder: Path, name: str) -> bytes:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3",
         "-utf8", "-keyout", "key.pem", "-out", "certificate.pem", "-subj", name],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    certificate = first_certificate((folder / "certificate.pem").read_text())
    assert certificate is not None
    return certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return made(tmp_path_factory.mktemp("certificate"), "/C=DE/O=Example, Inc./OU=data/CN=client")


@pytest.mark.parametrize(
    ("given_name", "told"),
    [
        ("/CN=client", "CN=client"),
        ("/C=DE/ST=Hessen/L=Fulda/O=Example, Inc./OU=d/CN=c", "CN=c,OU=d,O=Example\\, Inc.,L=Fulda,ST=Hessen,C=DE"),
        ("/DC=org/DC=example/UID=7/CN=a\\+b", "CN=a\\+b,UID=7,DC=example,DC=org"),
        ("/CN=\u00e9\u4e16", "CN=\u00e9\u4e16"),
        ("/CN=x/emailAddress=a@b", "1.2.840.113549.1.9.1=#1603614062,CN=x"),
    ],
)
def test_a_name_is_written_as_java_writes_it(tmp_path: Path, given_name: str, told: str) -> None:
    assert subject(made(tmp_path, given_name)) == told


def test_when_it_ends(certificate: bytes) -> None:
    left = expires_at(certificate) - datetime.now(UTC)
    assert timedelta(days=2, hours=23) < left <= timedelta(days=3)


def test_a_file_without_a_certificate_has_none() -> None:
    assert first_certificate("nothing") is None


@given(data=st.data())
@examples(30, soak=1_000)
def test_damaged_ones_are_read_or_refused_and_nothing_else(certificate: bytes, data: st.DataObject) -> None:
    changed = bytearray(certificate)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    for damaged in (bytes(changed), cut):
        for read in (subject, expires_at):
            with contextlib.suppress(MalformedCertificate):
                read(damaged)  # type: ignore[operator]


def test_openssl_agrees(certificate: bytes, tmp_path: Path) -> None:
    file = tmp_path / "c.pem"
    file.write_text(ssl.DER_cert_to_PEM_cert(certificate))
    told = subprocess.run(
        ["openssl", "x509", "-in", str(file), "-noout", "-subject", "-nameopt", "RFC2253"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert told.strip().removeprefix("subject=") == subject(certificate)


def test_a_number_without_end_is_a_malformed_certificate_and_nothing_else() -> None:
    with pytest.raises(MalformedCertificate):
        _oid(b"\xff" * 5000 + b"\x01")
