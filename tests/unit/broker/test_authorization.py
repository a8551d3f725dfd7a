"""The decision, against a slow and obvious twin of it, and by its laws."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceflow.broker.authorization import Rules, principals
from onceflow.errors import ConfigError
from onceflow.wire.acls import Acl, AclFilter, Operation, Pattern, Permission, Resource

ALICE, BOB, EVERYBODY = "User:alice", "User:bob", "User:*"
HERE, THERE = "10.0.0.1", "10.0.0.2"
NAMES = ["a", "ab", "abc", "b", "*"]
OPERATIONS = [operation for operation in Operation if operation is not Operation.ANY]
RESOURCES = [Resource.TOPIC, Resource.GROUP]

acls = st.builds(
    Acl,
    resource=st.sampled_from(RESOURCES),
    name=st.sampled_from(NAMES),
    pattern=st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    principal=st.sampled_from([ALICE, BOB, EVERYBODY]),
    host=st.sampled_from([HERE, THERE, "*"]),
    operation=st.sampled_from(OPERATIONS),
    permission=st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
rule_sets = st.lists(acls, max_size=6)
questions = st.tuples(
    st.sampled_from([ALICE, BOB]),
    st.sampled_from([HERE, THERE]),
    st.sampled_from([operation for operation in OPERATIONS if operation is not Operation.ALL]),
    st.sampled_from(RESOURCES),
    st.sampled_from(NAMES[:-1]),
)
Question = tuple[str, str, Operation, Resource, str]


def rules(*acls: Acl, super_users: frozenset[str] = frozenset(), open_by_default: bool = False) -> Rules:
    return Rules(acls, super_users=super_users, open_by_default=open_by_default)


def acl(operation: Operation, name: str = "orders", **rest: object) -> Acl:
    usual: dict[str, object] = {
        "resource": Resource.TOPIC,
        "name": name,
        "pattern": Pattern.LITERAL,
        "principal": ALICE,
        "host": "*",
        "operation": operation,
        "permission": Permission.ALLOW,
    }
    return Acl(**(usual | rest))  # type: ignore[arg-type]


def is_about(acl: Acl, resource: Resource, name: str) -> bool:
    if acl.resource != resource:
        return False
    if acl.pattern == Pattern.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


def concerns(acl: Acl, principal: str, host: str) -> bool:
    return acl.principal in (principal, "User:*") and acl.host in (host, "*")


def obviously(acls: list[Acl], question: Question, open_by_default: bool) -> bool:
    """As Kafka's documentation says it."""
    principal, host, operation, resource, name = question
    about = [each for each in acls if is_about(each, resource, name)]
    mine = [each for each in about if concerns(each, principal, host)]
    sufficient = {operation, Operation.ALL}
    denied = any(each.operation in sufficient for each in mine if each.permission == Permission.DENY)
    if operation == Operation.DESCRIBE:
        sufficient |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation == Operation.DESCRIBE_CONFIGS:
        sufficient |= {Operation.ALTER_CONFIGS}
    allowed = any(each.operation in sufficient for each in mine if each.permission == Permission.ALLOW)
    return not denied and (allowed or (open_by_default and not about))


@given(rule_sets, questions, st.booleans())
def test_the_decision_is_the_obvious_one(given_acls: list[Acl], question: Question, open_by_default: bool) -> None:
    decided = rules(*given_acls, open_by_default=open_by_default).allow(*question)
    assert decided == obviously(given_acls, question, open_by_default)


@given(rule_sets, questions)
def test_a_denial_always_wins(given_acls: list[Acl], question: Question) -> None:
    principal, host, operation, resource, name = question
    denial = Acl(resource, name, Pattern.LITERAL, principal, host, operation, Permission.DENY)
    assert not rules(*given_acls, denial).allow(*question)


@given(rule_sets, acls, questions)
def test_one_more_rule_that_allows_takes_nothing_away(given_acls: list[Acl], more: Acl, question: Question) -> None:
    allowing = more._replace(permission=Permission.ALLOW)
    if rules(*given_acls).allow(*question):
        assert rules(*given_acls, allowing).allow(*question)


@given(rule_sets, acls, questions)
def test_one_more_rule_that_denies_gives_nothing(given_acls: list[Acl], more: Acl, question: Question) -> None:
    denying = more._replace(permission=Permission.DENY)
    if not rules(*given_acls).allow(*question):
        assert not rules(*given_acls, denying).allow(*question)


@given(rule_sets, st.sampled_from([ALICE, BOB]), st.sampled_from([HERE, THERE]))
def test_allowed_somewhere_means_that_there_is_such_a_name(given_acls: list[Acl], principal: str, host: str) -> None:
    decided = rules(*given_acls)
    names = ["".join(letters) for length in (1, 2, 3, 4) for letters in product("abcz", repeat=length)]
    somewhere = any(decided.allow(principal, host, Operation.WRITE, Resource.TOPIC, name) for name in [*names, "*"])
    assert decided.allow_somewhere(principal, host, Operation.WRITE, Resource.TOPIC) == somewhere


def test_a_super_user_may_do_what_is_denied() -> None:
    denied = acl(Operation.ALL, "*", principal=EVERYBODY, permission=Permission.DENY)
    decided = rules(denied, super_users=frozenset({ALICE}))
    assert decided.allow(ALICE, HERE, Operation.READ, Resource.TOPIC, "orders")
    assert decided.allow_somewhere(ALICE, HERE, Operation.WRITE, Resource.TOPIC)
    assert not decided.allow(BOB, HERE, Operation.READ, Resource.TOPIC, "orders")


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_what_implies_describe_implies_it_where_it_allows_and_not_where_it_denies(operation: Operation) -> None:
    question = (ALICE, HERE, Operation.DESCRIBE, Resource.TOPIC, "orders")
    assert rules(acl(operation)).allow(*question)
    assert rules(acl(Operation.DESCRIBE), acl(operation, permission=Permission.DENY)).allow(*question)


def test_a_literal_name_is_no_prefix_and_a_prefix_is_no_other_resource() -> None:
    literal, prefixed = acl(Operation.READ, "ord"), acl(Operation.READ, "ord", pattern=Pattern.PREFIXED)
    assert not rules(literal).allow(ALICE, HERE, Operation.READ, Resource.TOPIC, "orders")
    assert rules(prefixed).allow(ALICE, HERE, Operation.READ, Resource.TOPIC, "orders")
    assert rules(prefixed).allow(ALICE, HERE, Operation.READ, Resource.TOPIC, "ord")
    assert not rules(prefixed).allow(ALICE, HERE, Operation.READ, Resource.TOPIC, "or")
    assert not rules(prefixed).allow(ALICE, HERE, Operation.READ, Resource.GROUP, "orders")


@pytest.mark.parametrize(
    ("said", "comes_from"),
    [
        ("::1", "0:0:0:0:0:0:0:1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("FE80::A", "fe80::a"),
    ],
)
def test_an_address_is_the_same_however_it_is_written(said: str, comes_from: str) -> None:
    denied = rules(acl(Operation.READ), acl(Operation.READ, host=said, permission=Permission.DENY))
    assert not denied.allow(ALICE, comes_from, Operation.READ, Resource.TOPIC, "orders")
    assert denied.allow(ALICE, "10.9.9.9", Operation.READ, Resource.TOPIC, "orders")
    only_there = rules(acl(Operation.WRITE, host=said))
    assert only_there.allow_somewhere(ALICE, comes_from, Operation.WRITE, Resource.TOPIC)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), {"orders", "ord", "*", "g"}),
        (AclFilter(resource=Resource.TOPIC), {"orders", "ord", "*"}),
        (AclFilter(name="orders"), {"orders"}),
        (AclFilter(name="orders", pattern=Pattern.LITERAL), {"orders"}),
        (AclFilter(name="orders", pattern=Pattern.PREFIXED), set()),
        (AclFilter(name="ord", pattern=Pattern.PREFIXED), {"ord"}),
        (AclFilter(name="orders", pattern=Pattern.MATCH), {"orders", "ord", "*"}),
        (AclFilter(name="or", pattern=Pattern.MATCH), {"*"}),
        (AclFilter(pattern=Pattern.PREFIXED), {"ord"}),
        (AclFilter(principal=BOB), {"g"}),
        (AclFilter(principal="User:nobody"), set()),
        (AclFilter(host=HERE), {"g"}),
        (AclFilter(operation=Operation.WRITE), {"ord"}),
        (AclFilter(permission=Permission.DENY), {"*"}),
        (AclFilter(resource=99), set()),
        (AclFilter(operation=99), set()),
    ],
)
def test_a_filter_finds(wanted: AclFilter, found: set[str]) -> None:
    there = [
        acl(Operation.READ),
        acl(Operation.WRITE, "ord", pattern=Pattern.PREFIXED),
        acl(Operation.READ, "*", permission=Permission.DENY),
        acl(Operation.READ, "g", resource=Resource.GROUP, principal=BOB, host=HERE),
    ]
    assert {each.name for each in there if wanted.matches(each)} == found


def test_super_users_are_principals_with_semicolons_between_them() -> None:
    assert principals("User:admin; User:CN=a,O=b ;") == {"User:admin", "User:CN=a,O=b"}
    assert principals("") == frozenset()
    for wrong in ("admin", "User:", ":admin"):
        with pytest.raises(ConfigError, match=r"super\.users"):
            principals(wrong)
