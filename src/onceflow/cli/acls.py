"""`onceflow acls`: who may do what, at any Kafka. add, list, delete.

The words are those of Kafka's `kafka-acls`. A rule of `add` names a principal, what it may do, and with what; the
shorthands stand for all the rules that a kind of client needs. `list` and `delete` take the same words as a filter.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

from onceflow.cli.common import add_connection, connection, counted
from onceflow.cli.output import ask, new_table, print_json, print_table, say
from onceflow.client.acls import AclAdmin
from onceflow.client.cluster import Cluster
from onceflow.errors import ConfigError
from onceflow.wire.acls import (
    CLUSTER_NAME,
    SUPPORTED,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    Permission,
    Resource,
)

__all__ = ["add_parser", "run"]

EXAMPLES = """\
examples:
  onceflow acls add --principal User:alice --operation read --topic orders
  onceflow acls add --principal User:alice --consumer --topic orders --group billing
  onceflow acls add --principal User:bob --producer --topic orders- --prefixed
  onceflow acls add --principal User:etl --exactly-once --topic orders --topic totals --group etl --transactional-id etl
  onceflow acls add --principal User:mallory --deny --operation all --topic '*' --host 10.0.0.66
  onceflow acls list --topic orders                      every rule that concerns it, also prefixes and *
  onceflow acls list --principal User:alice --json
  onceflow acls delete --principal User:alice --topic orders

A rule that denies wins over all that allow. Reading, writing, deleting and altering allow to describe as well. Who is
in the broker's super.users needs no rules.
"""

RESOURCES: Final = {
    "topic": Resource.TOPIC,
    "group": Resource.GROUP,
    "transactional_id": Resource.TRANSACTIONAL_ID,
}
OPERATIONS: Final = {
    operation.name.lower().replace("_", "-"): operation for operation in Operation if operation is not Operation.ANY
}
SHORTHANDS: Final[dict[str, dict[Resource, tuple[Operation, ...]]]] = {
    "producer": {
        Resource.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
        Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    },
    "consumer": {
        Resource.TOPIC: (Operation.READ, Operation.DESCRIBE),
        Resource.GROUP: (Operation.READ, Operation.DESCRIBE),
    },
    "exactly_once": {
        Resource.TOPIC: (Operation.READ, Operation.WRITE, Operation.DESCRIBE),
        Resource.GROUP: (Operation.READ, Operation.DESCRIBE),
        Resource.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    },
}
OPTIONAL: Final = {("producer", Resource.TRANSACTIONAL_ID)}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "acls",
        help="who may do what: add, list and delete access rules",
        description="Add, list and delete access rules (ACLs).",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    adding = actions.add_parser("add", help="new rules", description="Add rules; those that are there stay.")
    listing = actions.add_parser(
        "list", help="the rules there are", description="List all rules, or those that concern what is named."
    )
    deleting = actions.add_parser(
        "delete",
        help="rules go",
        description="Delete the rules that are exactly about what is named: --topic orders spares a rule about *.",
    )
    deleting.add_argument("--yes", action="store_true", help="do not ask")
    for action in (adding, listing, deleting):
        _add_words(action)
        action.add_argument("--json", action="store_true", help="print JSON, for scripts")
        add_connection(action)


def _add_words(action: argparse.ArgumentParser) -> None:
    rule = action.add_argument_group("rule")
    rule.add_argument("--principal", metavar="User:NAME", type=_principal, action="append", default=[], help="who")
    rule.add_argument("--operation", choices=tuple(OPERATIONS), action="append", default=[], help="may do what")
    rule.add_argument("--topic", metavar="NAME", action="append", default=[], help="with this topic; * for all")
    rule.add_argument("--group", metavar="NAME", action="append", default=[], help="with this consumer group")
    rule.add_argument(
        "--transactional-id", metavar="ID", action="append", default=[], help="with this transactional id"
    )
    rule.add_argument("--cluster", action="store_true", help="with the cluster itself")
    rule.add_argument("--prefixed", action="store_true", help="with everything whose name begins like that")
    rule.add_argument("--host", metavar="ADDRESS", action="append", default=[], help="from where (default: anywhere)")
    rule.add_argument("--deny", action="store_true", help="may not, whatever other rules say")
    shorthand = action.add_argument_group("instead of --operation").add_mutually_exclusive_group()
    shorthand.add_argument("--producer", action="store_true", help="write to --topic, also with --transactional-id")
    shorthand.add_argument("--consumer", action="store_true", help="read --topic as --group")
    shorthand.add_argument(
        "--exactly-once",
        action="store_true",
        help="read and write --topic, and commit the offsets of --group in transactions of --transactional-id",
    )


def _principal(text: str) -> str:
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise argparse.ArgumentTypeError(f"{text!r} should look like User:alice, or User:* for everybody")
    return text


def run(args: argparse.Namespace) -> int:
    # A mistake on the command line is found before anybody is asked anything.
    rules = _rules(args) if args.action == "add" else []
    filters = _filters(args) if args.action != "add" else []
    with Cluster(connection(args)) as cluster:
        admin = AclAdmin(cluster)
        match args.action:
            case "add":
                return _add(admin, rules, args)
            case "delete":
                return _delete(admin, filters, args)
        return _list(admin, filters, args)


# What the words mean


def _shorthand(args: argparse.Namespace) -> str | None:
    return next((name for name in SHORTHANDS if getattr(args, name)), None)


def _named(args: argparse.Namespace) -> Iterator[tuple[Resource, str, Pattern]]:
    pattern = Pattern.PREFIXED if args.prefixed else Pattern.LITERAL
    for option, resource in RESOURCES.items():
        for name in getattr(args, option):
            yield resource, name, pattern
    if args.cluster:
        yield Resource.CLUSTER, CLUSTER_NAME, Pattern.LITERAL


def _rules(args: argparse.Namespace) -> list[Acl]:
    if not args.principal:
        raise ConfigError("say who: --principal User:alice, or User:* for everybody.")
    named = list(_named(args))
    _check_resources(args, {resource for resource, _, _ in named})
    permission = Permission.DENY if args.deny else Permission.ALLOW
    return [
        Acl(resource, name, pattern, principal, host, operation, permission)
        for resource, name, pattern in named
        for principal in args.principal
        for host in args.host or [WILDCARD]
        for operation in _operations(args, resource)
    ]


def _operations(args: argparse.Namespace, resource: Resource) -> Sequence[Operation]:
    shorthand = _shorthand(args)
    if shorthand:
        return SHORTHANDS[shorthand][resource]
    chosen = [OPERATIONS[name] for name in args.operation]
    for operation in chosen:
        if operation not in (Operation.ALL, *SUPPORTED[resource]):
            there = ", ".join(_word(each) for each in (Operation.ALL, *SUPPORTED[resource]))
            raise ConfigError(f"with a {_word(resource)} one cannot {_word(operation)}; there are: {there}.")
    return chosen


def _check_resources(args: argparse.Namespace, named: set[Resource]) -> None:
    shorthand = _shorthand(args)
    if shorthand is None:
        if not args.operation:
            raise ConfigError("say what: --operation read, or a shorthand (--producer, --consumer, --exactly-once).")
        if not named:
            raise ConfigError("say with what: --topic, --group, --transactional-id or --cluster.")
        return
    option = f"--{shorthand.replace('_', '-')}"
    if args.operation or args.deny:
        raise ConfigError(f"{option} stands for what such a client needs; it takes no --operation and no --deny.")
    needed = {resource for resource in SHORTHANDS[shorthand] if (shorthand, resource) not in OPTIONAL}
    for resource in sorted(needed - named):
        raise ConfigError(f"{option} needs --{_word(resource)} as well.")
    for resource in sorted(named - SHORTHANDS[shorthand].keys()):
        raise ConfigError(f"{option} has no use for --{_word(resource)}.")


def _filters_anything(args: argparse.Namespace) -> bool:
    named = (args.principal, args.operation, args.topic, args.group, args.transactional_id, args.cluster, args.host)
    return any(named) or args.deny or _shorthand(args) is not None


def _filters(args: argparse.Namespace) -> list[AclFilter]:
    if args.action == "delete" and not _filters_anything(args):
        raise ConfigError("say which rules to delete: a principal, a resource, an operation.")
    if _shorthand(args):
        return [AclFilter(*rule) for rule in _rules(args)]
    return list(_combined_filters(args))


def _combined_filters(args: argparse.Namespace) -> Iterator[AclFilter]:
    """`list` shows whatever concerns a name; `delete` takes what is exactly about it."""
    named: list[tuple[int, str | None, int]] = list(_named(args))
    if args.action == "list" and not args.prefixed:
        named = [(resource, name, Pattern.MATCH) for resource, name, _ in named]
    if not named:
        named = [(Resource.ANY, None, Pattern.PREFIXED if args.prefixed else Pattern.ANY)]
    permission = Permission.DENY if args.deny else Permission.ANY
    for resource, name, pattern in named:
        for principal in args.principal or [None]:
            for host in args.host or [None]:
                for operation in args.operation or [None]:
                    code = Operation.ANY if operation is None else OPERATIONS[operation]
                    yield AclFilter(resource, name, pattern, principal, host, code, permission)


# What is done


def _add(admin: AclAdmin, rules: Sequence[Acl], args: argparse.Namespace) -> int:
    admin.add(rules)
    if args.json:
        return print_json([_as_json(rule) for rule in rules])
    _show(rules)
    say(f"{counted(len(rules), 'rule')} added.")
    return 0


def _list(admin: AclAdmin, filters: Sequence[AclFilter], args: argparse.Namespace) -> int:
    found = _found(admin, filters)
    if args.json:
        return print_json([_as_json(rule) for rule in found])
    if found:
        _show(found)
    else:
        say("There are no such rules." if _filters_anything(args) else "There are no rules.")
    return 0


def _delete(admin: AclAdmin, filters: Sequence[AclFilter], args: argparse.Namespace) -> int:
    if not args.yes and sys.stdin.isatty() and not _agreed(_found(admin, filters)):
        return 1
    deleted = sorted(set(admin.delete(filters)))
    if args.json:
        return print_json([_as_json(rule) for rule in deleted])
    if deleted:
        _show(deleted)
    say(f"{counted(len(deleted), 'rule')} deleted." if deleted else "There are no such rules; nothing was deleted.")
    return 0


def _found(admin: AclAdmin, filters: Sequence[AclFilter]) -> list[Acl]:
    return sorted({rule for wanted in filters for rule in admin.matching(wanted)})


def _agreed(found: Sequence[Acl]) -> bool:
    """Only a person at a terminal is asked; a script means what it says."""
    if not found:
        return True  # and nothing will be deleted
    _show(found)
    ask(f"Delete {counted(len(found), 'rule')}? [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("Nothing was done.", err=True)
    return False


def _show(rules: Sequence[Acl]) -> None:
    table = new_table("principal", may="left", operation="left", resource="left", name="left", host="left")
    for rule in rules:
        name = f"{rule.name}..." if rule.pattern is Pattern.PREFIXED else rule.name
        may = "may not" if rule.permission is Permission.DENY else "may"
        table.add_row(rule.principal, may, _word(rule.operation), _word(rule.resource), name, rule.host)
    print_table(table)


def _word(code: Operation | Resource) -> str:
    return code.name.lower().replace("_", "-")


def _as_json(rule: Acl) -> dict[str, str]:
    return {
        "principal": rule.principal,
        "permission": rule.permission.name.lower(),
        "operation": _word(rule.operation),
        "resource": _word(rule.resource),
        "name": rule.name,
        "pattern": rule.pattern.name.lower(),
        "host": rule.host,
    }
