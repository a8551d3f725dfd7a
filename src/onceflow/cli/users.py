"""`onceflow users`: who may log in. Of a running broker, or of any Kafka, through its address; of ours also in its data
directory while it is stopped, which is how the first user comes to be.

A password is asked for, or read from a file or from standard input; never from the command line, which everybody on
the machine can read.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from onceflow.cli.common import add_connection, connection
from onceflow.cli.output import new_table, print_json, print_table, say
from onceflow.client.users import NUMBERS, User
from onceflow.errors import ConfigError, OnceflowError

__all__ = ["add_parser", "run"]

ITERATIONS_MIN, ITERATIONS_DEFAULT, ITERATIONS_MAX = 4096, 8192, 16384
NAME_MAX: Final = 1000
EXAMPLES = """\
examples:
  onceflow users add admin --data ./data               the first one, before the broker starts; asks for the password
  onceflow users add alice --password-file alice.txt --bootstrap 127.0.0.1:9092
  onceflow users passwd alice
  onceflow users list --json
  onceflow users delete alice

A user logs in with SCRAM-SHA-256 or SCRAM-SHA-512, and with PLAIN where the broker allows it; all with one password.
Who is logged in stays so until the connection ends; connections.max.reauth.ms sets an end to it.
"""


class UserError(OnceflowError):
    """There is no such user, or there is one already."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "users",
        help="who may log in: add, list and delete users",
        description="Add, list and delete users, and change their passwords.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    listing = actions.add_parser("list", help="all users, and how they log in")
    listing.add_argument("--json", action="store_true", help="print JSON, for scripts")
    adding = actions.add_parser("add", help="a new user")
    changing = actions.add_parser("passwd", help="another password for a user")
    deleting = actions.add_parser("delete", help="a user may not log in any more")
    for action in (adding, changing, deleting):
        action.add_argument("name", metavar="NAME")
    for action in (adding, changing):
        _add_password(action)
    for action in (listing, adding, changing, deleting):
        action.add_argument(
            "--data", metavar="DIR", type=Path, help="the data directory of a broker that is not running"
        )
        add_connection(action)


def _add_password(action: argparse.ArgumentParser) -> None:
    source = action.add_mutually_exclusive_group()
    source.add_argument("--password-file", metavar="FILE", type=Path, help="read the password from a file")
    source.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    action.add_argument(
        "--mechanism",
        action="append",
        choices=tuple(NUMBERS),
        help="only this one; may be repeated (default: both)",
    )
    action.add_argument(
        "--iterations",
        type=int,
        default=ITERATIONS_DEFAULT,
        help=f"rounds of hashing, {ITERATIONS_MIN} to {ITERATIONS_MAX} (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    if args.data is not None and (args.bootstrap or args.client_config):
        raise ConfigError("--data is for a broker that is not running, --bootstrap for one that is; give one of them.")
    if args.action in ("add", "passwd"):
        return _set_password(args)
    with _users(args) as users:
        return _list(users, args.json) if args.action == "list" else _delete(users, args.name)


def _list(users: _Users, as_json: bool) -> int:
    found = users.list()
    if as_json:
        return print_json([{"name": user.name, "mechanisms": dict(user.iterations)} for user in found])
    table = new_table("user", mechanisms="left", iterations="right")
    for user in found:
        rounds = sorted(set(user.iterations.values()))
        table.add_row(user.name, ", ".join(user.iterations), ", ".join(map(str, rounds)))
    print_table(table)
    return 0


def _set_password(args: argparse.Namespace) -> int:
    _check_name(args.name)
    if not ITERATIONS_MIN <= args.iterations <= ITERATIONS_MAX:
        raise ConfigError(f"--iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}, not {args.iterations}.")
    with _users(args) as users:
        exists = any(user.name == args.name for user in users.list())
        if args.action == "add" and exists:
            raise UserError(f"there is a user {args.name!r} already; `onceflow users passwd` changes the password")
        if args.action == "passwd" and not exists:
            raise UserError(f"there is no user {args.name!r}; `onceflow users add` makes one")
        users.set_password(args.name, _password(args), args.mechanism or list(NUMBERS), args.iterations)
    say(f"User {args.name} {'added' if args.action == 'add' else 'has another password'}.")
    return 0


def _delete(users: _Users, name: str) -> int:
    for user in users.list():
        if user.name == name:
            users.delete(name, list(user.iterations))
            say(f"User {name} deleted.")
            return 0
    raise UserError(f"there is no user {name!r}")


def _check_name(name: str) -> None:
    if not name or len(name) > NAME_MAX or not name.isprintable():
        raise ConfigError(f"A user needs a name of 1 to {NAME_MAX} characters that can be seen.")


# The password


def _password(args: argparse.Namespace) -> str:
    if args.password_file is not None:
        try:
            password = args.password_file.read_text()
        except OSError as error:
            raise ConfigError(f"Cannot read {args.password_file}: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{args.password_file} is not a text file in UTF-8.") from None
    elif args.password_stdin:
        password = sys.stdin.readline()
    else:
        password = _asked(args.name)
    password = password.removesuffix("\n").removesuffix("\r")
    if not password or "\0" in password:
        raise ConfigError("The password is empty, or holds a NUL character; nothing was changed.")
    return str(password)


def _asked(name: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError("There is nobody to ask for the password; use --password-file or --password-stdin.")
    password = getpass.getpass(f"Password for {name}: ")
    if getpass.getpass("Again: ") != password:
        raise ConfigError("The two passwords differ; nothing was changed.")
    return password


# Where users are


class _Users(Protocol):
    def list(self) -> list[User]: ...
    def set_password(self, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None: ...
    def delete(self, name: str, mechanisms: Sequence[str]) -> None: ...


@contextlib.contextmanager
def _users(args: argparse.Namespace) -> Iterator[_Users]:
    if args.data is not None:
        with _directory_users(args.data) as users:
            yield users
        return
    from onceflow.client.cluster import Cluster

    with Cluster(connection(args)) as cluster:
        yield _ClusterUsers(cluster)


class _ClusterUsers:
    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def list(self) -> list[User]:
        from onceflow.client.users import list_users

        return list_users(self._cluster)

    def set_password(self, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        from onceflow.client.users import set_password

        set_password(self._cluster, name, password, mechanisms, iterations)

    def delete(self, name: str, mechanisms: Sequence[str]) -> None:
        from onceflow.client.users import delete_user

        delete_user(self._cluster, name, mechanisms)


@contextlib.contextmanager
def _directory_users(directory: Path) -> Iterator[_DirectoryUsers]:
    from onceflow.broker.users import Users
    from onceflow.log.files import DirectoryLock, RealFileSystem, make_data_directory

    try:
        make_data_directory(directory)
        lock = DirectoryLock(directory)
    except BlockingIOError:
        raise UserError(f"a broker is running on {directory}: change its users with --bootstrap instead") from None
    except OSError as error:
        raise UserError(f"data directory {directory} cannot be used: {error.strerror}") from None
    try:
        yield _DirectoryUsers(Users(RealFileSystem(), directory))
    finally:
        lock.release()


class _DirectoryUsers:
    def __init__(self, users: Any) -> None:
        self._users = users

    def list(self) -> list[User]:
        return [
            User(name=name, iterations={each: one.iterations for each, one in self._users.credentials(name).items()})
            for name in sorted(self._users)
        ]

    def set_password(self, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
        from onceflow.broker.users import Change, Credential

        credentials = [Credential.of_password(each, password, iterations) for each in mechanisms]
        self._users.apply([Change(user=name, mechanism=each.mechanism, credential=each) for each in credentials])

    def delete(self, name: str, mechanisms: Sequence[str]) -> None:
        from onceflow.broker.users import Change

        self._users.apply([Change(user=name, mechanism=each) for each in mechanisms])
