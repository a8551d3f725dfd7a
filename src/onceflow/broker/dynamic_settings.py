"""Settings of the broker that clients change while it runs, as in Kafka (KIP-226): for this broker, for all brokers.

Both are kept, though there is one broker: tools change the one or the other, and what this broker was given goes first.
What can be changed is `config.DYNAMIC`. Kafka also keeps settings that nobody knows; here they are refused, since there
are no plugins that could read them.

On disk: `DIR/broker-settings.json`, replaced as a whole before a change holds, and read before the topics are. A crash
leaves the settings as they were or as they were to be. As in Kafka they go before what is given at start.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from onceflow.broker.connection_limits import ConnectionLimits
from onceflow.config import BROKER_SETTINGS, DYNAMIC, BrokerConfig
from onceflow.errors import ConfigError, ErrorCode, ProtocolError
from onceflow.log.files import FileSystem
from onceflow.log.small_files import read_json, reading_version, replace_json

__all__ = ["DynamicSettings", "changed"]

logger = logging.getLogger(__name__)

SETTINGS_FILE: Final = "broker-settings.json"
FORMAT_VERSION: Final = 1
REMEDY: Final = (
    "Restore it from a backup of the directory, or write {} into it: then the broker has the settings that it is given "
    "at start, and clients have to change theirs anew."
)
THIS_BROKER: Final = "this broker"
ALL_BROKERS: Final = "all brokers"


class DynamicSettings:
    """The file."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / SETTINGS_FILE

    def load(self, config: BrokerConfig) -> BrokerConfig:
        """The settings of a broker that starts with `config`."""
        if not self._files.exists(self._path):
            return config
        content = read_json(self._files, self._path, REMEDY)
        if not content:
            return config
        with reading_version(FORMAT_VERSION, self._path, content, REMEDY):
            loaded = _checked(config, _texts(content[THIS_BROKER]), _texts(content[ALL_BROKERS]))
        for name in config.given:
            if loaded.text(name) != config.text(name):
                logger.warning(
                    "%s is %s, as a client has set it, and not %s, as given at start.",
                    name,
                    loaded.text(name),
                    config.text(name),
                )
        return loaded

    def create_file(self) -> None:
        """For a new directory: from then on a file that is missing was removed by somebody."""
        if not self._files.exists(self._path):
            self._save({}, {})

    def save(self, config: BrokerConfig) -> None:
        """Raises `StorageError`."""
        self._save(config.for_this_broker, config.for_all_brokers)

    def _save(self, for_this: Mapping[str, str], for_all: Mapping[str, str]) -> None:
        content = {"version": FORMAT_VERSION, THIS_BROKER: dict(for_this), ALL_BROKERS: dict(for_all)}
        replace_json(self._files, self._path, content)


def changed(config: BrokerConfig, wanted: Mapping[str, str], *, for_all: bool) -> BrokerConfig:
    """`config` with these settings, and no others, for all brokers or for this one.

    Raises `ProtocolError`: 40 for a setting that does not exist, 42 as in Kafka for one that is given at start and for
    a value that it cannot have.
    """
    if fixed := [name for name in wanted if name in BROKER_SETTINGS and name not in DYNAMIC]:
        raise ProtocolError(
            ErrorCode.INVALID_REQUEST,
            f"Cannot update these configs dynamically: [{', '.join(fixed)}]. They are given at start (--set).",
        )
    try:
        if for_all:
            return _checked(config, config.for_this_broker, wanted)
        return _checked(config, wanted, config.for_all_brokers)
    except ConfigError as error:
        is_known = all(name in BROKER_SETTINGS for name in wanted)
        raise ProtocolError(ErrorCode.INVALID_REQUEST if is_known else ErrorCode.INVALID_CONFIG, str(error)) from error


def _checked(config: BrokerConfig, for_this: Mapping[str, str], for_all: Mapping[str, str]) -> BrokerConfig:
    """Also what is not in effect is checked: it is, once what goes before it is taken back."""
    checked = replace(config, for_this_broker=for_this, for_all_brokers=for_all)
    ConnectionLimits.of(replace(checked, for_this_broker={}))
    ConnectionLimits.of(checked)
    return checked


def _texts(content: object) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(text, str) for text in content.values()):
        raise ValueError(f"it has {content!r} for settings")
    return content
