"""What a small file says is what was written into it, or it is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceflow.errors import CorruptLog, StorageError
from onceflow.log.memory_files import MemoryFileSystem
from onceflow.log.small_files import from_json, read_json, replace_json, to_json

FILE = Path("/data/small.json")
CONTENT = {"version": 1, "name": "é\ud800", "deep": {"b": [1, None, True], "a": {}}, "none": []}


def stored(content: bytes) -> MemoryFileSystem:
    files = MemoryFileSystem()
    files.make_directory(FILE.parent)
    files.replace(FILE, content)
    return files


def test_what_was_written_is_read() -> None:
    files = stored(b"")
    replace_json(files, FILE, CONTENT)
    assert read_json(files, FILE) == CONTENT
    assert {**CONTENT, "crc32c": json.loads(files.read_bytes(FILE))["crc32c"]} == json.loads(files.read_bytes(FILE))


def test_spaces_and_the_order_of_keys_do_not_count() -> None:
    content = json.loads(to_json(CONTENT))
    assert from_json(json.dumps(dict(reversed(content.items()))).encode() + b"\n") == CONTENT


def test_every_flipped_bit_is_found_or_changes_nothing() -> None:
    data = to_json(CONTENT)
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert from_json(changed) == CONTENT
        except ValueError:
            continue


def test_every_cut_and_what_is_added_is_refused_by_name_with_what_to_do() -> None:
    data = to_json(CONTENT)
    for content in [data[:size] for size in range(len(data))] + [data + b"\0", data + data, bytes(len(data))]:
        with pytest.raises(CorruptLog, match=r"^/data/small\.json is damaged \(.+\)\. Do this\.$"):
            read_json(stored(content), FILE, "Do this.")


@pytest.mark.parametrize(
    "content", [b"[]", b"null", b"7", b'{"version": 1}', b'{"crc32c": null}', b"\xff", b"[" * 100_000]
)
def test_what_has_no_checksum_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptLog, match="is damaged"):
        read_json(stored(content), FILE)


def test_nothing_at_all_is_what_a_person_may_write() -> None:
    assert read_json(stored(b"{}\n"), FILE) == {}


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(StorageError, match="small"):
        read_json(stored(b""), FILE.with_name("smaller.json"))
