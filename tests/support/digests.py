"""The SHA-256 digests of all that the tests download and run: jars, PostgreSQL, a browser (`digests.txt`).

A section of the table is what is fetched together, named as its folder in the cache, with the platform where there is
one for each. A file that is not in its section is refused, as is a digest that differs: a registry, a mirror or
a resolver that hands out something else is noticed before anything of it is used.

    python -m tests.support.digests            fetches everything, for all platforms, and prints the table
    python -m tests.support.digests --write    ... and writes it: after a version was changed
"""

from __future__ import annotations

import functools
import hashlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["coordinates", "expected", "verify"]

TABLE = Path(__file__).with_name("digests.txt")
HEAD = "# SHA-256, section, file, Maven's coordinates. Written by: python -m tests.support.digests --write\n"


def expected(section: str) -> dict[str, str]:
    """By the name of the file. Empty for a section that is not in the table."""
    return {each.name: each.digest for each in _table(TABLE).get(section, ())}


def coordinates(section: str) -> list[tuple[str, str, str]]:
    """Group, name and version of the jars of the section."""
    found = [each.coordinates.split(":") for each in _table(TABLE).get(section, ()) if each.coordinates]
    return [(group, name, version) for group, name, version in found]


def verify(section: str, folder: Path) -> None:
    """Raises `ValueError` unless exactly the files of the section are in the folder."""
    wanted, found = expected(section), _digests(folder)
    advice = (
        "Nothing of it is kept or used. If a version was changed on purpose, "
        "`python -m tests.support.digests --write` makes the table anew; if not, ask who answers for the registry"
    )
    for name in sorted(wanted.keys() | found.keys()):
        if name not in wanted:
            raise ValueError(f"{name} is not expected in {section}: {TABLE.name} does not have it. {advice}")
        if name not in found:
            raise ValueError(f"{name} is missing in what was fetched for {section}. {advice}")
        if found[name] != wanted[name]:
            raise ValueError(
                f"{name} is not the file that the tests expect in {section}: its SHA-256 is {found[name]}, and "
                f"{TABLE.name} has {wanted[name]}. {advice}"
            )


def _digests(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): _digest(path) for path in folder.rglob("*") if path.is_file()}


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Entry(NamedTuple):
    digest: str
    section: str
    name: str
    coordinates: str = ""


@functools.cache
def _table(path: Path) -> dict[str, list[_Entry]]:
    table: dict[str, list[_Entry]] = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            entry = _Entry(*line.split())
            table.setdefault(entry.section, []).append(entry)
    return table


def _fetched() -> Iterator[str]:
    """The lines of the table, by what the registries hand out now."""
    from tests.support import chromium, kafka_jars, postgresql_binaries

    for download in (*kafka_jars.DOWNLOADS, *postgresql_binaries.DOWNLOADS, *chromium.DOWNLOADS):
        with tempfile.TemporaryDirectory(prefix="digests-") as folder:
            where: dict[str, str] = {}
            if download.resolve is not None:
                where = download.resolve(Path(folder))
            else:
                download.fetch(Path(folder))
            for name, digest in sorted(_digests(Path(folder)).items()):
                yield "  ".join(filter(None, _Entry(digest, download.section, name, where.get(name, "")))) + "\n"


def _main(arguments: list[str]) -> None:
    if arguments not in ([], ["--write"]):
        sys.exit(__doc__)
    table = HEAD + "".join(_fetched())
    print(table, end="")
    if arguments:
        TABLE.write_text(table)


if __name__ == "__main__":
    _main(sys.argv[1:])
