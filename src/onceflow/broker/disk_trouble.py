"""What the log says of a disk that refuses writes: once for each partition when it begins, and when it is over.

Producers try again for minutes, each of them many times a second: they are told each time, the log is not. That it is
over is found out by looking again now and then, so that a write which succeeds costs nothing for it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from onceflow.broker.partition import Partition
from onceflow.errors import StorageError

__all__ = ["LOOK_S", "DiskTrouble"]

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
NAMED_MAX: Final = 10
"""Partitions with a line of their own; a disk has thousands."""
FORGOTTEN_AFTER_LOOKS: Final = 600
"""Nobody has written there for ten minutes: whether it would work is not known."""


@dataclass(slots=True)
class _Episode:
    end_offset: int = 0
    refused: int = 0
    looks_since: int = 0
    """Since the last refusal."""


class DiskTrouble:
    def __init__(self) -> None:
        self._episodes: dict[Partition, _Episode] = {}

    def refused(self, partition: Partition, error: StorageError) -> None:
        """A write, or its flush. Nothing of it is there."""
        episode = self._episodes.get(partition)
        if episode is None:
            episode = self._episodes[partition] = _Episode()
            self._say(partition, error)
        episode.end_offset = partition.log.end_offset
        episode.refused += 1
        episode.looks_since = 0

    def _say(self, partition: Partition, error: StorageError) -> None:
        if len(self._episodes) <= NAMED_MAX:
            logger.error(
                "%s Writes to %s-%d are refused until the disk takes them: make room there, or see what is wrong with "
                "it. Producers are told to try again, and nothing that was acknowledged is lost.",
                error,
                partition.topic,
                partition.index,
            )
        elif len(self._episodes) == NAMED_MAX + 1:
            logger.error("Writes to further partitions are refused as well.")

    def look_again(self) -> None:
        """Every `LOOK_S`."""
        takes_writes = []
        for partition, episode in tuple(self._episodes.items()):
            episode.looks_since += 1
            if partition.log.closed or episode.looks_since > FORGOTTEN_AFTER_LOOKS:
                del self._episodes[partition]
            elif episode.looks_since > 1 and partition.log.end_offset > episode.end_offset:
                del self._episodes[partition]
                takes_writes.append((partition, episode))
        for partition, episode in takes_writes[:NAMED_MAX]:
            logger.warning(
                "%s-%d takes writes again; %d were refused.", partition.topic, partition.index, episode.refused
            )
        if len(takes_writes) > NAMED_MAX:
            logger.warning("%d further partitions take writes again.", len(takes_writes) - NAMED_MAX)
