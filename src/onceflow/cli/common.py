"""What the client commands share: where to connect, NAME=VALUE arguments, and bytes in JSON."""

from __future__ import annotations

import argparse
import base64
import binascii
import tempfile
from pathlib import Path
from typing import Any

from onceflow.client.addresses import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, default_bootstrap
from onceflow.client.settings import ClientSettings
from onceflow.digits import INT64_MAX, whole_number_of
from onceflow.errors import ConfigError
from onceflow.properties import read_properties

__all__ = [
    "add_connection",
    "bytes_from_json",
    "bytes_to_json",
    "connection",
    "counted",
    "make_folder",
    "name_and_value",
    "whole_number",
]


def add_connection(parser: argparse.ArgumentParser) -> None:
    """The options of everything that talks to a broker."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--bootstrap",
        metavar="HOST:PORT",
        default=None,
        help=f"the broker's address, several with commas between (default: ${BOOTSTRAP_VARIABLE}, "
        f"else {DEFAULT_BOOTSTRAP})",
    )
    add_client_config(group)


class _FromFile(argparse.Action):
    """A file of settings, as if they had been given one by one before all others: those win."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: object) -> None:
        namespace.client_config = [*read_properties(Path(values)).items(), *namespace.client_config]


def add_client_config(group: Any) -> None:
    """The option for further settings of clients, for a parser or one of its groups."""
    group.add_argument(
        "--client-config",
        metavar="NAME=VALUE",
        type=name_and_value,
        action="append",
        default=[],
        help="a further librdkafka setting of all clients, for example security.protocol=SSL; may be repeated",
    )
    group.add_argument(
        "--command-config",
        metavar="FILE",
        action=_FromFile,
        help="such settings from a file, NAME=VALUE on each line: the place for passwords, which on a command line "
        "everybody on this machine can read",
    )


def connection(args: argparse.Namespace) -> ClientSettings:
    """The settings from `add_connection`'s options."""
    return ClientSettings(bootstrap=args.bootstrap or default_bootstrap(), extra=dict(args.client_config))


def name_and_value(text: str) -> tuple[str, str]:
    """An argparse type for NAME=VALUE. The value may be empty and may contain further equals signs."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} should look like NAME=VALUE")
    return name, value


def whole_number(minimum: int, maximum: int = INT64_MAX) -> Any:
    """An argparse type for whole numbers from `minimum` up."""
    limits = f"from {minimum} " + ("up" if maximum == INT64_MAX else f"to {maximum}")

    def parse(text: str) -> int:
        number = whole_number_of(text, maximum)
        if number is None or number < minimum:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number {limits}")
        return number

    return parse


def make_folder(folder: Path, option: str) -> Path:
    """A folder for what a command leaves behind, which `option` chooses. It is there then, and takes files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise ConfigError(f"folder {folder} cannot be used: {problem.strerror}. Choose one with {option}") from None
    return folder


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def bytes_to_json(data: bytes | None) -> Any:
    """Text where the bytes are UTF-8, else `{"base64": ...}`; null stays null."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def bytes_from_json(value: Any) -> bytes | None:
    """The reverse of `bytes_to_json`, except that a value of any other shape becomes its own JSON text.

    Raises `ValueError` if base64 is announced and something else comes.
    """
    import json

    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise ValueError(f"{value['base64']!r} is not base64") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
