"""Compaction (placeholder until the cleaner lands)."""

from __future__ import annotations

from pathlib import Path

from onceflow.log.files import FileSystem


def finish_interrupted(files: FileSystem, directory: Path) -> None:
    return None
