"""What PLAIN and SCRAM accept and refuse, without a broker: our client's half of the conversation talks to this one."""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.authentication import (
    Accepted,
    AuthenticationFailed,
    Challenge,
    Mechanism,
    PasswordCheck,
    Plain,
    Scram,
)
from onceflow.broker.users import HASHES, Change, Credential, Users, salted_password
from onceflow.client.sasl import Login
from onceflow.log.memory_files import MemoryFileSystem
from tests.support.effort import examples

PASSWORDS = {"alice": "alice-secret", "b=o,b \u4e16": "\u00e9 pass=word,"}


@pytest.fixture(scope="module")
def users() -> Users:
    files = MemoryFileSystem()
    files.make_directory(Path("/data"))
    users = Users(files, Path("/data"))
    users.apply(
        Change(user=user, mechanism=mechanism, credential=Credential.of_password(mechanism, password, 4096))
        for user, password in PASSWORDS.items()
        for mechanism in HASHES
    )
    return users


def evaluated(mechanism: Mechanism, token: bytes) -> Accepted | Challenge:
    step = mechanism.evaluate(token)
    return step.run() if isinstance(step, PasswordCheck) else step


def log_in(users: Users, name: str, user: str, password: str) -> Accepted:
    """A whole conversation; the client checks our signature as well."""
    mechanism: Mechanism = Plain(users) if name == "PLAIN" else Scram(name, users)
    conversation = Login(mechanism=name, username=user, password=password).conversation()
    token = next(conversation)
    while True:
        step = evaluated(mechanism, token)
        try:
            token = conversation.send(step.data)
        except StopIteration:
            assert isinstance(step, Accepted)
            return step


@pytest.mark.parametrize("name", ["PLAIN", *HASHES])
@pytest.mark.parametrize("user", PASSWORDS)
def test_the_right_password_is_accepted(users: Users, name: str, user: str) -> None:
    assert log_in(users, name, user, PASSWORDS[user]).user == user


@pytest.mark.parametrize("name", ["PLAIN", *HASHES])
@pytest.mark.parametrize(("user", "password"), [("alice", "alice-secre"), ("alice", "Alice-secret"), ("nobody", "x")])
def test_any_other_password_and_any_other_user_is_not(users: Users, name: str, user: str, password: str) -> None:
    with pytest.raises(AuthenticationFailed) as refused:
        log_in(users, name, user, password)
    assert user not in str(refused.value)
    assert password not in str(refused.value)


def salt(users: Users, user: str) -> bytes:
    step = Scram("SCRAM-SHA-256", users).evaluate(f"n,,n={user},r=abc".encode())
    return step.data.partition(b",s=")[2]


def test_a_user_that_does_not_exist_has_a_salt_as_any_other_and_always_the_same(users: Users) -> None:
    assert salt(users, "nobody") == salt(users, "nobody") != salt(users, "nobody2")
    nobody, alice = (salt(users, user).partition(b",") for user in ("nobody", "alice"))
    assert len(nobody[0]) == len(alice[0])
    assert nobody[2] == alice[2] == b"i=4096"


def test_who_has_no_keys_cannot_log_in_with_made_up_ones(users: Users) -> None:
    """The keys of a user that does not exist are derived from a secret: even who knew them would be refused."""
    credential, exists = users.to_check("nobody", "SCRAM-SHA-256")
    assert not exists
    scram = Scram("SCRAM-SHA-256", users)
    challenge = scram.evaluate(b"n,,n=nobody,r=abc").data
    nonce = challenge.partition(b",")[0]
    proof = base64.b64encode(credential.stored_key)
    with pytest.raises(AuthenticationFailed):
        scram.evaluate(b"c=biws," + nonce + b",p=" + proof)


def test_the_server_adds_to_the_nonce_and_never_the_same(users: Users) -> None:
    nonces = {Scram("SCRAM-SHA-256", users).evaluate(b"n,,n=alice,r=abc").data.partition(b",")[0] for _ in range(20)}
    assert len(nonces) == 20
    assert all(nonce.startswith(b"r=abc") and len(nonce) > 20 for nonce in nonces)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=41ice,r=abc",
        b"n,,n=al=3=2CDice,r=abc",
        b"n,,n=alice,r=a\x7fb",
        b"p=tls-unique,,n=alice,r=abc",
        b"x,,n=alice,r=abc",
        b"n,b=alice,n=alice,r=abc",
        b"n,,m=must,n=alice,r=abc",
        b"n,,n=alice,r=abc,tokenauth=true",
        b"n,,n=alice,r=abc,",
        b"n,,n=al\0ice,r=abc",
        b"n,,n=\xff,r=abc",
    ],
)
def test_first_messages_that_scram_does_not_know_are_refused(users: Users, token: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
        Scram("SCRAM-SHA-256", users).evaluate(token)


def test_another_identity_than_the_users_own_is_refused(users: Users) -> None:
    assert Scram("SCRAM-SHA-256", users).evaluate(b"n,a=alice,n=alice,r=abc").data
    with pytest.raises(AuthenticationFailed, match="authorization id that is different from username"):
        Scram("SCRAM-SHA-256", users).evaluate(b"n,a=bob,n=alice,r=abc")


@given(token=st.binary(max_size=200) | st.text(alphabet="n,ar=cpmi:Ab+/", max_size=60).map(str.encode))
@examples(70, soak=2_000)
def test_whatever_comes_is_a_challenge_or_a_refusal_and_never_a_login(users: Users, token: bytes) -> None:
    for mechanism in (Plain(users), Scram("SCRAM-SHA-256", users)):
        try:
            step = mechanism.evaluate(token)
        except AuthenticationFailed:
            continue
        assert not isinstance(step, Accepted)


@given(token=st.binary(max_size=200))
@examples(70, soak=2_000)
def test_no_proof_but_the_right_one_is_a_login(users: Users, token: bytes) -> None:
    scram = Scram("SCRAM-SHA-256", users)
    nonce = scram.evaluate(b"n,,n=alice,r=abc").data.partition(b",")[0]
    for final in (token, b"c=biws," + nonce + b",p=" + base64.b64encode(token)):
        with pytest.raises(AuthenticationFailed):
            scram.evaluate(final)


def proven(users: Users, challenge: bytes, without_proof: bytes) -> bytes:
    """The final message of somebody who knows alice's password, and signs whatever it says."""
    credential = users.credentials("alice")["SCRAM-SHA-256"]
    salted = salted_password("SCRAM-SHA-256", PASSWORDS["alice"], credential.salt, credential.iterations)
    key = hmac.digest(salted, b"Client Key", "sha256")
    signed = b",".join((b"n=alice,r=abc", challenge, without_proof))
    signature = hmac.digest(credential.stored_key, signed, "sha256")
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return without_proof + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize(
    ("said", "is_right"),
    [
        ("c=biws,{nonce}", True),
        ("c=biws,{nonce},ext=ignored", True),
        ("c=biws,{nonce}x", False),
        ("c=biws,r=abc", False),
        ("c=eSws,{nonce}", False),
        ("{nonce},c=biws", False),
        ("{nonce}", False),
    ],
)
def test_a_proof_counts_only_for_this_conversation(users: Users, said: str, is_right: bool) -> None:
    scram = Scram("SCRAM-SHA-256", users)
    challenge = scram.evaluate(b"n,,n=alice,r=abc").data
    without_proof = said.format(nonce=challenge.partition(b",")[0].decode()).encode()
    final = proven(users, challenge, without_proof)
    if is_right:
        assert isinstance(scram.evaluate(final), Accepted)
    else:
        with pytest.raises(AuthenticationFailed):
            scram.evaluate(final)
