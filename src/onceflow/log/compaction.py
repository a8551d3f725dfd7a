"""Compaction: of each key the last record stays, and offsets never change (`cleanup.policy=compact`).

WHAT GOES, as in Kafka's `LogCleaner`. Of the segments below some offset (sealed, checkpointed, stable, and older than
`min.compaction.lag.ms`), the part that was never cleaned is the *dirty* range. One pass over it notes the last offset
of every key; a second pass over everything up to its end writes those segments anew, without

- a record of an aborted transaction, and a record whose key comes again later in the dirty range. What was aborted
  does not count as coming again;
- a tombstone (a null value) whose batch has passed its delete horizon. The horizon is set when a batch with tombstones
  is cleaned for the first time, `delete.retention.ms` ahead (KIP-534). The older records of their keys go at that time,
  so nothing is left that could come back to life when the tombstone goes later. Segments are replaced from the oldest
  on, each for good before the next, so that holds in a crash too;
- a record without a key. A compacted topic takes none; these were there before it became one;
- a transaction's marker when no batch of the transaction was there any more when the pass began; with a delete horizon,
  as a tombstone;
- a batch without records, unless it is one of the last five of a producer (`log.producers` must be able to learn them
  from the log again), a marker from which alone a producer's epoch is known, or the last one of its file (an empty file
  would stop retention).

The rest keeps its bytes (`wire.thinning`). Neighbours that fit into one segment together become one.

TRANSACTIONS. Everything below the last stable offset is decided, and nothing above it is cleaned. So all that is needed
is the list of aborted transactions (`log.aborted`), also of those whose marker comes later than what is cleaned. An
entry of that list is in the file of the segment that has its marker, for as long as the marker is there.

WHO DOES WHAT. `Cleaner.clean` is a generator that runs on the loop's thread. What it yields is slow and is run in the
cleaner's thread, while the loop serves; then the generator goes on. Two rules make that safe:

- *Names are made, changed and removed on the loop's thread only.* The other thread reads and writes open files, and
  syncs. So a topic that is deleted meanwhile, or deleted and created again, never finds our files in its folder.
- *After every yield the segments are looked at again.* Retention, a repair or the end of the topic may have closed
  them; whatever was read from them is then void, and so is our work.

COMMIT. Segments s1 .. sn, the next one beginning at e, become one. The commit is an empty file, the marker `s1-e.swap`.
In a loss of power each change of a name survives or not, in any order, until the folder is synced; hence the syncs.

    what if we die in or after this step                the next start
    0  sync the folder                  [thread]        finds the old segments
    1  create s1.*.cleaned              [loop]          finds the old segments, removes *.cleaned
    2  write them, sync them and the folder [thread]    the same: there is no marker, nor can an older one return (0)
    3  create the marker                [loop]          finds it or not, both are good: *.cleaned is complete
    4  sync the folder                  [thread]        the same
    5  rename s1.*.cleaned to s1.*, remove s2.* .. sn.*
       and put the new segment in place [loop]          finds the marker; completes 5, then 6 and 7
    6  sync the folder                  [thread]        the same
    7  remove the marker                [loop]          finds it or not; there is nothing left to do

A marker without *.cleaned means that they were renamed. So they are never removed while their marker might come back:
whoever gives up between 3 and 5 removes the marker, syncs the folder, and then removes them. The indexes go the same
way as the log, so neither is ever used with another one's log. That holds for the aborted transactions above all: their
`.cleaned` is always there, even if it is empty, so that it takes the place of a list that says more.

`cleaner-offset.json` holds the offset up to which a log is clean. Losing it only means that all of the log is dirty
again.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from onceflow.config import LONG_MAX
from onceflow.digits import whole_number_of
from onceflow.errors import CorruptLog, MalformedMessage, OnceflowError, StorageError
from onceflow.log.aborted import Aborts
from onceflow.log.draft import CLEANED_SUFFIX, Draft, Part, Survivors, cleaned, note_keys
from onceflow.log.files import FileSystem
from onceflow.log.segment import ABORTED_SUFFIX, LOG_SUFFIX, SUFFIXES, Segment, file_name
from onceflow.log.small_files import read_json, to_json
from onceflow.steps import Work, in_thread

if TYPE_CHECKING:
    from onceflow.log.partition import PartitionLog

__all__ = ["Cleaner", "Pace", "finish_interrupted"]

logger = logging.getLogger(__name__)

MARKER_SUFFIX: Final = ".swap"
OFFSET_FILE: Final = "cleaner-offset.json"
KEYS_MAX: Final = 500_000
"""Keys that are noted at a time, at 110 to 150 bytes each. With more, the dirty range is cleaned in several rounds."""
_MARKER: Final = re.compile(r"([0-9]{20})-([0-9]{20})\.swap")

_T = TypeVar("_T")
Steps = Generator[Work, None, _T]
"""Yields what is to be run in the cleaner's thread; returns a `_T`."""


class _Stopped(Exception):
    """The broker shuts down."""


class _SegmentsAreGone(Exception):
    """Segments that were being cleaned are not those of the log any more."""


class Pace:
    """How the cleaner's thread shares the interpreter with the loop, and how it is stopped.

    A thread that only computes gives up the interpreter every 5 ms, and the loop, which needs it back after every
    system call, would wait that long each time. So the cleaner works for a moment and rests for a moment.
    """

    def __init__(self, work_s: float = 0.0, rest_s: float = 0.0) -> None:
        self._work_s = work_s
        self._rest_s = rest_s
        self._since = time.perf_counter()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    def __call__(self) -> None:
        """Called after every batch."""
        if self._stopped:
            raise _Stopped
        if self._rest_s and time.perf_counter() - self._since > self._work_s:
            time.sleep(self._rest_s)
            self._since = time.perf_counter()


@dataclass(slots=True)
class _Job:
    """What there is to clean in a log."""

    log: PartitionLog
    parts: list[Part]
    """Everything that may be cleaned, from the start of the log."""
    dirty_from: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Something is older than `max.compaction.lag.ms`."""

    @property
    def end_offset(self) -> int:
        return self.parts[-1].end_offset

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes)

    @property
    def is_due(self) -> bool:
        return self.is_overdue or self.dirty_ratio > self.log.config.min_cleanable_dirty_ratio

    def check(self) -> None:
        """Raise unless the segments are still those of the log. On the loop's thread, after everything slow."""
        if self.log.closed:
            raise _SegmentsAreGone
        live = set(map(id, self.log.segments))
        if not all(id(part.segment) in live for part in self.parts):
            raise _SegmentsAreGone


class Cleaner:
    """Finds what is due, cleans it, and remembers how far each log is clean."""

    def __init__(self, files: FileSystem, *, pace: Pace | None = None, keys_max: int = KEYS_MAX) -> None:
        self._files = files
        self._keys_max = keys_max
        self.pace = pace or Pace()
        self._cleaned_offsets: WeakKeyDictionary[PartitionLog, int] = WeakKeyDictionary()
        self._retired: list[Segment] = []
        """Replaced, but perhaps still on their way to a reader (`FileSlice`); closed when we look for work again."""
        self._blocked: WeakSet[PartitionLog] = WeakSet()
        """Logs not to be touched again before a restart (Kafka: uncleanable partitions).

        Their data is damaged, or the disk refused in the middle of a commit: its marker holds for the segments as they
        were then, so they must stay so until the next start completes it.
        """

    # What is due

    def due(self, logs: Iterable[PartitionLog], now_ms: int) -> list[PartitionLog]:
        """The logs to clean now, the dirtiest first."""
        self.close_retired()
        found = []
        for log in logs:
            if not log.config.compact or log.closed:
                continue
            try:
                _roll_if_overdue(log, now_ms)
                job = self._look(log, now_ms)
            except OnceflowError as error:
                logger.warning("%s cannot be compacted now: %s", log.directory, error)
                continue
            if job is not None and job.is_due:
                found.append((job.dirty_ratio, log))
        found.sort(key=lambda entry: entry[0], reverse=True)
        return [log for _, log in found]

    def close_retired(self) -> None:
        """Close the files of segments that were replaced."""
        while self._retired:
            self._retired.pop().close()

    def _look(self, log: PartitionLog, now_ms: int) -> _Job | None:
        """What could be cleaned; None if nothing is dirty. Kafka: `LogCleanerManager.cleanableOffsets`."""
        config = log.config
        if log.closed or log in self._blocked:
            return None
        dirty_from = self.cleaned_offset(log)
        if not log.start_offset <= dirty_from <= log.end_offset:  # records were deleted, or files lost
            dirty_from = log.start_offset
        parts: list[Part] = []
        clean_bytes = dirty_bytes = 0
        is_overdue = False
        for segment, end_offset in log.settled_segments():
            if end_offset <= dirty_from:
                clean_bytes += segment.size
            else:
                if config.min_compaction_lag_ms and segment.newest[0] > now_ms - config.min_compaction_lag_ms:
                    break
                dirty_bytes += segment.size
                is_overdue = is_overdue or _is_older(segment, now_ms, config.max_compaction_lag_ms)
            parts.append(Part(segment, end_offset))
        if not dirty_bytes:
            return None
        return _Job(log, parts, dirty_from, clean_bytes, dirty_bytes, is_overdue)

    def cleaned_offset(self, log: PartitionLog) -> int:
        """Up to where a log is clean; 0 if nobody knows."""
        if log not in self._cleaned_offsets:
            path = log.directory / OFFSET_FILE
            offset = 0
            if self._files.exists(path):
                with contextlib.suppress(CorruptLog):
                    offset = int(read_json(self._files, path).get("offset", 0))
            self._cleaned_offsets[log] = offset
        return self._cleaned_offsets[log]

    # Cleaning

    def clean(self, log: PartitionLog, now_ms: int) -> Steps[None]:
        """Clean all that is dirty in a log. Runs on the loop's thread; yields what the cleaner's thread is to run."""
        job = None
        try:
            job = self._look(log, now_ms)
            if job is None:
                return
            before = job.clean_bytes + job.dirty_bytes
            yield from self._clean(job, now_ms)
            after = sum(part.segment.size for part in job.parts)
            logger.info("Compacted %s: %d bytes became %d.", log.directory, before, after)
        except (_SegmentsAreGone, _Stopped):
            logger.debug("The compaction of %s was given up.", log.directory)
        except OnceflowError as error:
            with contextlib.suppress(_SegmentsAreGone):
                if job is not None:
                    job.check()  # what was closed under us fails to read, or reads as anything: nothing is wrong then
                self._report(log, error)

    def _report(self, log: PartitionLog, error: OnceflowError) -> None:
        if isinstance(error, StorageError) and log not in self._blocked:
            logger.warning("%s was not compacted, which is tried again later. %s", log.directory, error)
        else:
            self._blocked.add(log)
            logger.error("%s is not compacted any more until a restart. %s", log.directory, error)

    def _clean(self, job: _Job, now_ms: int) -> Steps[None]:
        log = job.log
        remembered = {batch.last_offset for _, producer in log.producers for batch in producer.batches}
        epochs = {id: producer.epoch for id, producer in log.producers if not producer.batches}
        aborts = Aborts(entry for segment in log.segments for entry in segment.aborted)
        while job.dirty_from < job.end_offset:
            dirty = [part for part in job.parts if part.end_offset > job.dirty_from]
            latest, mapped_to = yield from in_thread(
                lambda: self._latest_offsets(dirty, job.dirty_from, aborts)  # noqa: B023
            )
            job.check()
            retention_ms = log.config.delete_retention_ms
            survivors = Survivors(latest, mapped_to, now_ms, retention_ms, remembered, epochs, aborts)
            left = [part for part in job.parts if part.segment.base_offset < mapped_to]
            while left:
                taken = yield from self._replace(job, left, survivors)
                left = left[taken:]
            job.dirty_from = mapped_to
            yield from self._save_cleaned_offset(job)

    def _latest_offsets(self, dirty: list[Part], dirty_from: int, aborts: Aborts) -> tuple[dict[bytes, int], int]:
        """The last offset of each key in the dirty range, and up to where that was looked. [thread]"""
        latest: dict[bytes, int] = {}
        for part in dirty:
            for _, header, batch in part.segment.batches():
                self.pace()
                # The range begins with a batch, or inside one, where DeleteRecords moved the start of the log to.
                if header.last_offset < dirty_from or header.is_control:
                    continue
                if header.is_transactional and aborts.has(header.producer_id, header.base_offset):
                    continue
                reached = note_keys(part.segment, header, batch, latest, dirty_from, self._keys_max)
                if len(latest) >= self._keys_max:
                    return latest, reached
        return latest, dirty[-1].end_offset

    def _replace(self, job: _Job, parts: list[Part], survivors: Survivors) -> Steps[int]:
        """Put one cleaned segment in the place of the first few: steps 0 to 7 above. Returns how many those are."""
        log, directory = job.log, job.log.directory

        def sync_names() -> Steps[None]:
            yield from in_thread(lambda: self._files.sync_directory(directory))

        first = parts[0].segment
        yield from sync_names()  # 0
        job.check()
        draft = Draft(self._files, directory, first.base_offset, log.config)  # 1
        try:
            try:
                start_offset = log.start_offset
                taken, changed = yield from in_thread(
                    lambda: draft.write(parts, survivors, self.pace, start_offset)  # 2
                )
                job.check()
                if not changed:
                    draft.remove()
                    return taken
                yield from sync_names()
                job.check()
            except (StorageError, CorruptLog, MalformedMessage, _SegmentsAreGone):
                if not log.closed:
                    draft.remove()
                raise
            group = parts[:taken]
            marker = directory / f"{first.base_offset:020d}-{group[-1].end_offset:020d}{MARKER_SUFFIX}"
            try:
                self._files.open(marker).close()  # 3
                yield from sync_names()  # 4
                job.check()
                self._files.rename(draft.path(LOG_SUFFIX), first.path(LOG_SUFFIX))  # 5
            except (StorageError, _SegmentsAreGone):
                if not log.closed:
                    yield from self._take_back(log, marker, draft)
                raise
            draft.is_adopted = True
        finally:
            draft.close()
        yield from self._complete(job, group, draft.segment, marker)
        return taken

    def _take_back(self, log: PartitionLog, marker: Path, draft: Draft) -> Steps[None]:
        """Undo step 3. If that fails too, the next start goes forwards or backwards, as it finds the marker or not."""
        try:
            self._files.remove(marker)
            yield from in_thread(lambda: self._files.sync_directory(log.directory))
            if not log.closed:
                draft.remove()
        except StorageError:
            self._blocked.add(log)
            raise

    def _complete(self, job: _Job, group: list[Part], new: Segment, marker: Path) -> Steps[None]:
        """The rest of step 5, and what follows. If the disk refuses, the next start completes it."""
        log = job.log
        old = [part.segment for part in group]
        new.log.path = new.path(LOG_SUFFIX)
        log.replace_segments(old, new)
        self._retired += old
        at = job.parts.index(group[0])
        job.parts[at : at + len(group)] = [Part(new, group[-1].end_offset)]
        try:
            for suffix in SUFFIXES[1:]:
                self._files.rename(cleaned(new.path(suffix)), new.path(suffix))
            for segment in old[1:]:
                for suffix in SUFFIXES:
                    self._files.remove(segment.path(suffix))
            yield from in_thread(lambda: self._files.sync_directory(log.directory))  # 6
            if not log.closed:
                self._files.remove(marker)  # 7
                if not new.aborted:  # no file says the same as an empty one
                    self._files.remove(new.path(ABORTED_SUFFIX))
        except StorageError:
            self._blocked.add(log)
            raise
        new.drop_indexes()

    def _save_cleaned_offset(self, job: _Job) -> Steps[None]:
        """Like `files.replace`, but the syncing is done in the other thread, and the name may follow when it likes."""
        self._cleaned_offsets[job.log] = job.dirty_from
        path = job.log.directory / OFFSET_FILE
        job.check()
        file = self._files.open(cleaned(path))

        def write() -> None:
            file.truncate(0)
            file.append(to_json({"offset": job.dirty_from}))
            file.sync()

        try:
            yield from in_thread(write)
        finally:
            file.close()
        job.check()
        self._files.rename(cleaned(path), path)


def _roll_if_overdue(log: PartitionLog, now_ms: int) -> None:
    """The active segment is never cleaned, so what must be cleaned has to leave it."""
    if log.active.size and _is_older(log.active, now_ms, log.config.max_compaction_lag_ms):
        log.roll()


def _is_older(segment: Segment, now_ms: int, age_ms: int) -> bool:
    """Whether the first record of a segment is older than that, going by the record, as Kafka does."""
    if age_ms >= LONG_MAX:
        return False
    for _, first in segment.headers(0, peek=True):
        timestamp = first.base_timestamp if first.delete_horizon_ms is None else first.max_timestamp
        return 0 < timestamp < now_ms - age_ms
    return False


def finish_interrupted(files: FileSystem, directory: Path) -> None:
    """Complete or undo what a crash interrupted, before the segments are opened."""
    names = files.list(directory)
    markers = [match for match in map(_MARKER.fullmatch, names) if match]
    if not markers and not any(name.endswith(CLEANED_SUFFIX) for name in names):
        return
    # What is seen here, or not seen, must still be so after the next crash before anything is built on it.
    files.sync_directory(directory)
    for marker in markers:
        base_offset, end_offset = int(marker[1]), int(marker[2])
        logger.info("Completing the compaction of %s from offset %d to %d.", directory, base_offset, end_offset)
        for suffix in SUFFIXES:
            path = directory / file_name(base_offset, suffix)
            if files.exists(cleaned(path)):
                files.rename(cleaned(path), path)
        for name in names:
            stem, _, suffix = name.partition(".")
            offset = whole_number_of(stem) if f".{suffix}" in SUFFIXES else None
            if offset is not None and base_offset < offset < end_offset:
                files.remove(directory / name)
    if markers:
        files.sync_directory(directory)
        for marker in markers:
            files.remove(directory / marker[0])
    for name in files.list(directory):
        if name.endswith(CLEANED_SUFFIX):
            files.remove(directory / name)
