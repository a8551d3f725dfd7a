"""Logins as bytes: the vectors of the RFCs, what a false broker may not do, and Java's way to write a login."""

from __future__ import annotations

import base64
import pickle

import pytest

from onceflow.client.sasl import SCRAM_ROUNDS_MAX, Conversation, Login, LoginBroken, jaas_login, scram
from onceflow.errors import ConfigError

SHA_1_CHALLENGE = b"r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096"
SHA_256_NONCE = "rOprNGfwEbeRWgbNEkqO"
SHA_256_FULL_NONCE = SHA_256_NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SHA_256_CHALLENGE = f"r={SHA_256_FULL_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
SHA_256_SIGNATURE = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def ends(said: Conversation, last: bytes) -> bool:
    try:
        said.send(last)
    except StopIteration:
        return True
    return False


def sha_256(username: str = "user", password: str = "pencil") -> Conversation:
    return scram("sha256", username, password, SHA_256_NONCE)


def test_the_exchange_of_rfc_5802() -> None:
    said = scram("sha1", "user", "pencil", "fyko+d2lbbFgONRv9qkxdawL")
    assert next(said) == b"n,,n=user,r=fyko+d2lbbFgONRv9qkxdawL"
    assert said.send(SHA_1_CHALLENGE) == (
        b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts="
    )
    assert ends(said, b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=")


def test_the_exchange_of_rfc_7677() -> None:
    said = sha_256()
    assert next(said) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    expected = f"c=biws,r={SHA_256_FULL_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert said.send(SHA_256_CHALLENGE) == expected.encode()
    assert ends(said, SHA_256_SIGNATURE)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (b"v=" + base64.b64encode(bytes(32)), "could not prove that it knows the password"),
        (b"", "could not prove that it knows the password"),
        (b"v=6rriTRBi23WpRR", "not in base64"),
        (b"e=invalid-proof", "ended the SCRAM login: invalid-proof"),
        (b"\xff", "is not text"),
    ],
)
def test_a_broker_that_does_not_know_the_password_is_left(verdict: bytes, words: str) -> None:
    said = sha_256()
    next(said)
    said.send(SHA_256_CHALLENGE)
    with pytest.raises(LoginBroken, match=words):
        said.send(verdict)


@pytest.mark.parametrize(
    ("challenge", "words"),
    [
        (b"", "not an answer to ours"),
        (b"r=somebody-elses,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "not an answer to ours"),
        (f"r={SHA_256_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(), "not an answer to ours"),
        (SHA_256_CHALLENGE.replace(b"4096", b"4095"), "asks for 4095 rounds"),
        (SHA_256_CHALLENGE.replace(b"4096", str(SCRAM_ROUNDS_MAX + 1).encode()), "asks for 1000001 rounds"),
        (SHA_256_CHALLENGE.replace(b"4096", b"9" * 5000), "asks for 99999999999999999999 rounds"),
        (SHA_256_CHALLENGE.replace(b"4096", b"-5"), "asks for -5 rounds"),
        (SHA_256_CHALLENGE.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b"?"), "not in base64"),
        (b"m=new," + SHA_256_CHALLENGE, "a SCRAM extension that is not known"),
    ],
)
def test_a_challenge_that_cannot_be_is_not_answered(challenge: bytes, words: str) -> None:
    said = sha_256()
    next(said)
    with pytest.raises(LoginBroken, match=words):
        said.send(challenge)


def test_commas_and_equals_signs_in_a_name_are_escaped() -> None:
    assert next(sha_256("a=b,c")) == b"n,,n=a=3Db=2Cc,r=rOprNGfwEbeRWgbNEkqO"


def test_plain_is_one_message() -> None:
    said = Login(mechanism="PLAIN", username="jürgen", password="geheim").conversation()
    assert next(said) == "\0jürgen\0geheim".encode()
    assert ends(said, b"")


def test_each_scram_login_has_a_nonce_of_its_own() -> None:
    login = Login(mechanism="SCRAM-SHA-512", username="me", password="secret")
    firsts = {next(login.conversation()) for _ in range(3)}
    assert len(firsts) == 3
    assert all(first.startswith(b"n,,n=me,r=") for first in firsts)


def test_a_login_travels_and_does_not_show_its_password() -> None:
    login = Login(mechanism="PLAIN", username="me", password="hunter2")
    assert pickle.loads(pickle.dumps(login)) == login
    assert "hunter2" not in repr(login)


PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("text", "username", "password"),
    [
        (f'{PLAIN_MODULE} required username="me" password="secret";', "me", "secret"),
        (f"{PLAIN_MODULE} required\n  username='me'\n  password='se cret' ;", "me", "se cret"),
        (f"{PLAIN_MODULE} required username=me password=secret", "me", "secret"),
        (rf'kafkashaded.{PLAIN_MODULE} required username="m;e=" password="a\"b\\c";', "m;e=", 'a"b\\c'),
    ],
)
def test_a_login_as_java_writes_it(text: str, username: str, password: str) -> None:
    assert jaas_login(text) == (("PLAIN",), username, password)


def test_the_scram_module_speaks_both_scram_mechanisms() -> None:
    mechanisms, _, _ = jaas_login(f'{SCRAM_MODULE} required username="me" password="secret";')
    assert mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hunter2", "is not readable"),
        (f'{PLAIN_MODULE} required username="me" password="hunter2', "is not readable"),
        (f'{PLAIN_MODULE} required username="me" password=="hunter2";', "is not readable"),
        (f'{PLAIN_MODULE} required username="me" "hunter2";', "is not readable"),
        (f'{PLAIN_MODULE} required password="hunter2";', "has no username"),
        (f'{PLAIN_MODULE} required username="hunter2";', "has no password"),
        ('com.sun.security.auth.module.Krb5LoginModule required keyTab="hunter2";', "not supported here"),
        (f'{SCRAM_MODULE} required username="me" password="hunter2" tokenauth="true";', "delegation token"),
    ],
)
def test_what_is_not_a_login_is_refused_without_repeating_it(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        jaas_login(text)
    assert "hunter2" not in str(caught.value)
