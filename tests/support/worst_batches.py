"""Batches of records that cost most: small on the wire, enormous inside.

Each is one that could be: the checksum is right, the compression is right, and so, mostly, is what is in it.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import lz4.frame
import zstandard

from onceflow.wire.batch import HEADER, HEADER_SIZE, checksum
from onceflow.wire.compression import Codec, compress

__all__ = ["INSIDE_MAX", "Bomb", "bombs", "raw_batch"]

INSIDE_MAX: Final = 1 << 30
"""Bytes of records in one batch, at most."""
RATIOS: Final = {Codec.NONE: 1, Codec.GZIP: 1000, Codec.SNAPPY: 20, Codec.LZ4: 250, Codec.ZSTD: 16_000}
"""About as much as a byte of each codec can stand for."""
CHUNK: Final = 1 << 20


class Bomb(NamedTuple):
    filled_with: str
    batch: bytes


def bombs(size: int, inside_max: int = INSIDE_MAX) -> Iterator[Bomb]:
    """Batches of about this size at most, of every codec."""
    for codec in Codec:
        room = size - HEADER_SIZE - 256
        for make in _INSIDES:
            inside = min(room * RATIOS[codec], inside_max)
            while True:
                filled_with, count, stretch = make(inside)
                payload = _compressed(codec, *stretch)
                if len(payload) <= room:
                    break
                inside = inside * room // len(payload) * 9 // 10
            yield Bomb(f"{codec.name.lower()} batch of {filled_with}", raw_batch(count, payload, codec))


Stretch = tuple[bytes, bytes, int]
"""How it begins, what follows, how often."""
Inside = tuple[str, int, Stretch]
"""What is in a batch, and how many records that are supposed to be."""


def _headers(size: int) -> Inside:
    n = max(1, (size - 40) // 2)
    fields = b"\x00\x00\x00\x01\x01" + _zigzag(n)
    return f"one record with {n} headers", 1, (_zigzag(len(fields) + n * 2) + fields, b"\x00\x01", n)


def _records(size: int) -> Inside:
    n = max(1, size // len(SMALLEST))
    return f"{n} records", n, (b"", SMALLEST, n)


def _value(size: int) -> Inside:
    n = max(1, size - 40)
    fields = b"\x00\x00\x00\x01" + _zigzag(n)
    return f"one record of {n} bytes", 1, (_zigzag(len(fields) + n + 1) + fields, b"\x00", n + 1)


def _zeros(size: int) -> Inside:
    return "no record, and zeros", 0, (b"", b"\x00", size)


def _claimed_headers(_: int) -> Inside:
    head = b"\x18\x00\x00\x00\x01\x01" + _zigzag(2**31 - 1)
    return "a record that claims 2^31 - 1 headers", 1, (head, b"\x00", 64)


def _claimed_bytes(_: int) -> Inside:
    return "a record that claims 2^31 - 1 bytes", 1, (_zigzag(2**31 - 1), b"\x00", 64)


def _claimed_records(_: int) -> Inside:
    return "2^31 - 1 records, of which there is one", 2**31 - 1, (SMALLEST, b"", 0)


def _no_records(_: int) -> Inside:
    return "a million records in nothing", 1_000_000, (b"", b"", 0)


SMALLEST: Final = b"\x0c\x00\x00\x00\x01\x01\x00"
_INSIDES: Final = (
    _headers,
    _records,
    _value,
    _zeros,
    _claimed_headers,
    _claimed_bytes,
    _claimed_records,
    _no_records,
)


@functools.lru_cache(maxsize=64)
def _compressed(codec: Codec, head: bytes, unit: bytes, times: int) -> bytes:
    """Compressed piece by piece: what is inside may be a gigabyte."""
    pieces = _pieces(head, unit, times)
    if codec is Codec.GZIP:
        packer = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join([*map(packer.compress, pieces), packer.flush()])
    if codec is Codec.LZ4:
        with lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB) as frame:
            return b"".join([frame.begin(), *map(frame.compress, pieces), frame.flush()])
    if codec is Codec.ZSTD:
        stream = zstandard.ZstdCompressor(level=3).compressobj()
        return b"".join([*map(stream.compress, pieces), stream.flush()])
    return compress(codec, b"".join(pieces))


def _pieces(head: bytes, unit: bytes, times: int) -> Iterator[bytes]:
    yield head
    per_piece = max(1, CHUNK // max(1, len(unit)))
    whole, rest = divmod(times, per_piece)
    piece = unit * per_piece
    for _ in range(whole):
        yield piece
    yield unit * rest


def raw_batch(count: int, payload: bytes, codec: int) -> bytes:
    """A batch of anything, with its checksum."""
    last_offset_delta = max(0, count - 1)
    header = HEADER.pack(
        0,
        HEADER_SIZE - 12 + len(payload),
        -1,
        2,
        0,
        codec,
        last_offset_delta,
        1_700_000_000_000,
        1_700_000_000_000,
        -1,
        -1,
        -1,
        count,
    )
    whole = bytearray(header + payload)
    struct.pack_into(">I", whole, 17, checksum(whole))
    return bytes(whole)


def _zigzag(number: int) -> bytes:
    number = number << 1 ^ number >> 63
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
