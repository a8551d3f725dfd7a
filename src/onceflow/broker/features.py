"""Feature levels: what clients go by when they choose a protocol (KIP-584, KIP-1022).

`SUPPORTED` says how far each one goes: consumer groups of KIP-848, transactions V2 of KIP-890. A broker announces the
levels in ApiVersions; level 0 is off, and not announced. New brokers have the highest ones. Which protocol a request
follows is decided by its version, so a lower level takes nothing away from who goes on as before, but for
`group.version` 0: then consumer groups are refused.

On disk: `DIR/features.json`, replaced as a whole. `epoch` grows with every change; clients go
by the newest that they have seen.

An update has all its changes made or none. `levels_after` decides, `Features.apply` writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.errors import ErrorCode, ProtocolError
from onceflow.log.files import FileSystem
from onceflow.log.small_files import read_json, reading_version, replace_json

__all__ = ["GROUP_VERSION", "SUPPORTED", "FeatureUpdate", "Features", "levels_after"]

FEATURES_FILE: Final = "features.json"
FORMAT_VERSION: Final = 1
REMEDY: Final = (
    "Restore it from a backup of the directory, or write {} into it: then all features have their highest levels."
)
GROUP_VERSION: Final = "group.version"
SUPPORTED: Final[Mapping[str, int]] = {GROUP_VERSION: 1, "transaction.version": 2}
"""The highest level of each; the lowest is 0."""

UPGRADE: Final = 1
DOWNGRADES: Final = (2, 3)
"""Safe and unsafe; nothing is lost by any of ours."""


class FeatureUpdate(NamedTuple):
    feature: str
    level: int
    upgrade_type: int


class Features:
    """The levels of a broker."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / FEATURES_FILE
        self.levels: Mapping[str, int] = dict(SUPPORTED)
        self.epoch = 0
        if files.exists(self._path):
            self._load()

    def apply(self, levels: Mapping[str, int]) -> None:
        """Raises `StorageError` with nothing changed."""
        if levels == self.levels:
            return
        self._save(levels, self.epoch + 1)
        self.levels = dict(levels)
        self.epoch += 1

    def create_file(self) -> None:
        """For a new directory: from then on a file that is missing was removed by somebody."""
        if not self._files.exists(self._path):
            self._save(self.levels, self.epoch)

    def _save(self, levels: Mapping[str, int], epoch: int) -> None:
        content = {"version": FORMAT_VERSION, "epoch": epoch, "levels": dict(levels)}
        replace_json(self._files, self._path, content)

    def _load(self) -> None:
        content = read_json(self._files, self._path, REMEDY)
        if not content:
            return
        with reading_version(FORMAT_VERSION, self._path, content, REMEDY):
            self.epoch = _number(content["epoch"], 2**62)
            self.levels = {name: _number(content["levels"][name], highest) for name, highest in SUPPORTED.items()}


def _number(value: object, highest: int) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise ValueError(f"it has {value!r} for a number from 0 to {highest}")
    return value


def levels_after(levels: Mapping[str, int], updates: Iterable[FeatureUpdate]) -> dict[str, int]:
    """Raises `ProtocolError` for an update that cannot be made; then none of them may be."""
    wanted = {update.feature: update for update in updates}  # of several about one feature the last counts
    for update in wanted.values():
        reason = _why_not(levels, update)
        if reason:
            raise ProtocolError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"No feature was changed: {update.feature!r} cannot have level {update.level}, since {reason}.",
            )
    return {name: wanted[name].level if name in wanted else level for name, level in levels.items()}


def _why_not(levels: Mapping[str, int], update: FeatureUpdate) -> str | None:
    highest, present = SUPPORTED.get(update.feature), levels.get(update.feature, 0)
    if highest is None:
        return "this broker has no such feature"
    if not 0 <= update.level <= highest:
        return f"this broker supports the levels 0 to {highest}"
    if update.upgrade_type not in (UPGRADE, *DOWNGRADES):
        return f"there is no upgrade type {update.upgrade_type}"
    if update.level < present and update.upgrade_type == UPGRADE:
        return f"its level is {present}, and a downgrade has to be asked for as one"
    if update.level > present and update.upgrade_type != UPGRADE:
        return f"its level is {present}, and that would be no downgrade"
    return None
