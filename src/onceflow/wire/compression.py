"""The four codecs of Kafka, and a limit on what they may unpack to.

A batch of a hundred bytes can claim to hold gigabytes. So whoever unpacks says how much they are ready to
receive, and nothing beyond `max_bytes` is ever allocated for the result: gzip is read in bounded steps,
snappy states its size before its data, and lz4 and zstd write into a buffer of ours that grows only up to
the limit, or to what the headers of their blocks allow. Where that is less, data that do not fit are corrupt,
and nobody tries again with more.

All of it may be called in a thread while the event loop serves: the libraries let go of the interpreter, and
what would hold it for long, to copy or to clear megabytes, is done in pieces.

What clients really send:

- gzip: one member. RFC 1952 allows several in a row, and Java reads them, so we do.
- snappy: Java writes the blocks of the `snappy-java` library ("xerial"), librdkafka writes one raw block.
  Both are read; xerial is written, because every client reads that.

      8 bytes "\\x82SNAPPY\\x00" | int32 version | int32 oldest compatible version
      | (int32 length, raw snappy block)...

- lz4: the frame format with independent blocks; Java refuses linked ones (KIP-57). Both are read.
- zstd: frames, with or without the content size in the header.
"""

from __future__ import annotations

import enum
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final

import cramjam

from onceflow.errors import ConfigError, MalformedMessage, UnpacksToTooMuch

__all__ = ["DECOMPRESSED_BYTES_MAX", "DEFAULT_LEVELS", "LEVELS", "Codec", "begins_as", "compress", "decompress"]

DECOMPRESSED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default for `max_bytes`: 64 times what `message.max.bytes` lets through packed, and still harmless."""

Bytes = bytes | bytearray | memoryview

_PIECE: Final = 1024 * 1024
"""How much is copied or cleared at a time: half a millisecond."""
_ZEROS: Final = memoryview(bytes(_PIECE))


class Codec(enum.IntEnum):
    """The compression of a batch, as in the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: Final = {
    Codec.GZIP: range(1, 10),
    Codec.LZ4: range(1, 18),
    Codec.ZSTD: range(-131072, 23),
}
"""The levels that Kafka's `compression.<codec>.level` settings accept (KIP-390). Snappy has none."""
DEFAULT_LEVELS: Final = {Codec.GZIP: -1, Codec.LZ4: 9, Codec.ZSTD: 3}
"""The defaults of these settings. They are names more than levels: -1 lets zlib choose, and Kafka's lz4 takes its fast
compressor at 9, the slow ones at every other level."""


def compress(codec: int, data: Bytes, level: int | None = None) -> bytes:
    """Pack `data`. Without a level, each codec uses Kafka's default; codecs that have no levels ignore it."""
    codec = Codec(codec)
    if level == DEFAULT_LEVELS.get(codec):
        level = None
    if level is not None and codec in LEVELS and level not in LEVELS[codec]:
        levels = LEVELS[codec]
        raise ConfigError(
            f"Compression level {level} does not exist for {codec.name.lower()}: "
            f"choose from {levels.start} to {levels.stop - 1}."
        )
    return _COMPRESS[codec](data, level)


def decompress(codec: int, data: Bytes, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> bytes:
    """Unpack `data`, or raise `MalformedMessage` if it is corrupt or unpacks to more than `max_bytes`.

    Data that are not packed are returned as they are, whatever their size: they cannot grow.
    """
    unpack = _DECOMPRESS.get(codec)
    if unpack is None:
        raise MalformedMessage(f"There is no compression codec {codec}; Kafka has 0 to 4.")
    return unpack(data, max_bytes)


def begins_as(codec: int, data: Bytes, at: int = 0) -> bool:
    """Whether the data from `at` on can be packed like that, by their first bytes. Raw snappy begins with anything."""
    begin = data[at : at + 4]
    if codec == Codec.GZIP:
        return begin[:2] == _GZIP_MAGIC
    if codec == Codec.SNAPPY:
        return len(begin) > 0
    return begin == _MAGICS.get(codec) or int.from_bytes(begin, "little") & _SKIPPED_MASK == _SKIPPED


def _too_large(codec: Codec, max_bytes: int) -> UnpacksToTooMuch:
    return UnpacksToTooMuch(f"The {codec.name.lower()} data unpack to more than {max_bytes} bytes.")


def _corrupt(codec: Codec, reason: object) -> MalformedMessage:
    return MalformedMessage(f"The {codec.name.lower()} data are corrupt: {reason}.")


# --- none


def _copy(data: Bytes, _: int | None) -> bytes:
    return bytes(data)


# --- gzip

_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_GZIP_STEP: Final = 16 * 1024
"""Input per step. zlib copies whatever follows a member, so handing it all of a megabyte that consists of
50,000 empty members would copy the rest 50,000 times."""


def _gzip_compress(data: Bytes, level: int | None) -> bytes:
    packer = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, _GZIP_WBITS)
    return packer.compress(data) + packer.flush()


def _gzip_decompress(data: Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    room = _Room(Codec.GZIP, max_bytes)
    at = 0
    member = zlib.decompressobj(_GZIP_WBITS)
    while at < len(view):
        step = view[at : at + _GZIP_STEP]
        _gzip_step(member, step, room)
        at += len(step) - len(member.unused_data)
        if member.eof and at < len(view):
            member = zlib.decompressobj(_GZIP_WBITS)
    if not member.eof:
        raise _corrupt(Codec.GZIP, "they end in the middle")
    return room.content()


def _gzip_step(member: zlib._Decompress, step: Bytes, room: _Room) -> None:
    """Unpack a piece of the input, in pieces of the output."""
    while True:
        try:
            part = member.decompress(step, _PIECE)
        except zlib.error as error:
            raise _corrupt(Codec.GZIP, error) from None
        room.add(part)
        step = member.unconsumed_tail
        # Also without input there may be output left, if there was as much as it was asked for.
        if member.eof or (not step and len(part) < _PIECE):
            return


# --- snappy

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_MAGIC_AS_LENGTH: Final = int.from_bytes(_XERIAL_MAGIC[:4], "big", signed=True)
_XERIAL_VERSIONS: Final = struct.pack(">ii", 1, 1)
_XERIAL_HEADER_SIZE: Final = 16
_XERIAL_BLOCK: Final = 32 * 1024
"""Unpacked bytes per block; the size that Java's clients use."""
_INT32: Final = struct.Struct(">i")
_SNAPPY_RATIO_MAX: Final = 32
"""Nothing in the format stands for more than 64 bytes, or takes less than two."""


def _snappy_compress(data: Bytes, _: int | None) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_MAGIC, _XERIAL_VERSIONS]
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[at : at + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _snappy_decompress(data: Bytes, max_bytes: int) -> bytes:
    view = memoryview(data)
    # The versions are not looked at: there is only one format, and some clients swap their bytes.
    is_xerial = bytes(view[:8]) == _XERIAL_MAGIC and len(view) >= _XERIAL_HEADER_SIZE
    room = _Room(Codec.SNAPPY, max_bytes)
    for block in _xerial_blocks(view) if is_xerial else (view,):
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            if size > _SNAPPY_RATIO_MAX * len(block):
                raise _corrupt(Codec.SNAPPY, f"{len(block)} bytes are said to be {size}")
            with room.more(size) as buffer:
                cramjam.snappy.decompress_raw_into(block, buffer)
        except cramjam.DecompressionError as error:
            raise _corrupt(Codec.SNAPPY, error) from None
    return room.content()


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    at, end = _XERIAL_HEADER_SIZE, len(view)
    while at < end:
        if end - at < _INT32.size:
            raise _corrupt(Codec.SNAPPY, "they end in the middle of a block's length")
        (length,) = _INT32.unpack_from(view, at)
        if length == _XERIAL_MAGIC_AS_LENGTH:
            # A second stream behind the first: another header begins where a length should be.
            at += _XERIAL_HEADER_SIZE
            continue
        at += _INT32.size
        if not 0 < length <= end - at:
            raise _corrupt(Codec.SNAPPY, f"a block of {length} bytes is announced and {end - at} are left")
        yield view[at : at + length]
        at += length


# --- lz4 and zstd

_LZ4_FAST: Final = 1
_ZSTD_LEVEL: Final = DEFAULT_LEVELS[Codec.ZSTD]

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_CONTENT_SIZE_BIT: Final = 0x08
_LZ4_PIECE: Final = 256 * 1024
_LZ4_RATIO_MAX: Final = 255
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_REPEATED: Final = 1
_ZSTD_COMPRESSED: Final = 2
_ZSTD_BLOCK_MAX: Final = 128 * 1024
_SKIPPED: Final = 0x184D2A50
_SKIPPED_MASK: Final = 0xFFFFFFF0
"""Both formats have frames of their own meaning, which a reader passes over."""

_FIRST_GUESS_BYTES: Final = 64 * 1024
_BELIEVED_RATIO: Final = 256
"""How far a claimed size is believed before any of it was seen."""


def _lz4_compress(data: Bytes, level: int | None) -> bytes:
    packer = cramjam.lz4.Compressor(
        level=_LZ4_FAST if level is None else level, content_checksum=False, block_linked=False
    )
    view = memoryview(data)
    for at in range(0, len(view), _LZ4_PIECE):
        # Unlike the functions of the library, this takes nothing but `bytes`, and lets nobody else run.
        packer.compress(bytes(view[at : at + _LZ4_PIECE]))
    return bytes(packer.finish())


def _zstd_compress(data: Bytes, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def _lz4_decompress(data: Bytes, max_bytes: int) -> bytes:
    return _decompress_into(Codec.LZ4, cramjam.lz4.decompress_into, data, _lz4_claim(data), _lz4_bound(data), max_bytes)


def _zstd_decompress(data: Bytes, max_bytes: int) -> bytes:
    return _decompress_into(
        Codec.ZSTD, cramjam.zstd.decompress_into, data, _zstd_claim(data), _zstd_bound(data), max_bytes
    )


def _decompress_into(
    codec: Codec,
    unpack: Callable[[Bytes, memoryview], int],
    data: Bytes,
    claimed: int | None,
    bound: int,
    max_bytes: int,
) -> bytes:
    if claimed is not None and claimed > max_bytes:
        raise _too_large(codec, max_bytes)
    room = _Room(codec, max_bytes)
    for size in _buffer_sizes(len(data), claimed, min(bound, max_bytes)):
        with room.of(size) as buffer:
            try:
                length = unpack(data, buffer)
            except cramjam.DecompressionError as error:
                # A full buffer and corrupt data differ in the wording only, and wording may change with the next
                # release of the library: so both are tried again with more room, and the last failure counts.
                # Its words only: the error itself would hold on to the buffer until the garbage collector comes.
                failure = str(error)
                continue
        return room.content(length)
    if bound <= max_bytes:
        raise _corrupt(codec, failure)
    raise UnpacksToTooMuch(
        f"The {codec.name.lower()} data are corrupt or unpack to more than {max_bytes} bytes: {failure}."
    )


def _buffer_sizes(length: int, claimed: int | None, limit: int) -> Iterator[int]:
    """Growing sizes up to the limit. A claim is where to begin: it may be a lie, or more frames follow."""
    if claimed is None:
        size = max(_FIRST_GUESS_BYTES, 4 * length)
    else:
        size = max(1, min(claimed, _BELIEVED_RATIO * length))
    while size < limit:
        yield size
        size = max(_FIRST_GUESS_BYTES, 8 * size)
    yield limit


def _lz4_claim(data: Bytes) -> int | None:
    """The content size in the header of the first frame, which is optional and behind two bytes of flags."""
    if len(data) < 14 or data[:4] != _LZ4_MAGIC or not data[4] & _LZ4_CONTENT_SIZE_BIT:
        return None
    return int.from_bytes(data[6:14], "little")


def _zstd_claim(data: Bytes) -> int | None:
    """The content size in the header of the first frame."""
    if len(data) < 6 or data[:4] != _ZSTD_MAGIC:
        return None
    return _zstd_frame(data, 0)[1]


def _zstd_frame(data: Bytes, at: int) -> tuple[int, int | None]:
    """Where the blocks of the frame at `at` begin, and its content size if that is there (RFC 8878, 3.1.1.1)."""
    descriptor = data[at + 4]
    is_single_segment = bool(descriptor & 0x20)
    size_of_dictionary_id = (0, 1, 2, 4)[descriptor & 0x03]
    size_of_claim = (1 if is_single_segment else 0, 2, 4, 8)[descriptor >> 6]
    at += 5 + (0 if is_single_segment else 1) + size_of_dictionary_id
    end = at + size_of_claim
    if size_of_claim == 0 or len(data) < end:
        return end, None
    claimed = int.from_bytes(data[at:end], "little")
    return end, claimed + 256 if size_of_claim == 2 else claimed


# What the headers of the blocks allow. They stop at the first one that makes no sense: the libraries do so, too.


def _zstd_bound(data: Bytes) -> int:
    """As much as these frames can unpack to, at most (RFC 8878, 3.1.1.2)."""
    bound = at = 0
    size = len(data)
    while at + 5 < size:
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & _SKIPPED_MASK == _SKIPPED:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if data[at : at + 4] != _ZSTD_MAGIC:
            return bound
        has_checksum = data[at + 4] & 0x04
        at, claimed = _zstd_frame(data, at)
        inside = last = 0
        while not last:
            if at + 3 > size:
                break
            block = int.from_bytes(data[at : at + 3], "little")
            last, kind, length = block & 1, block >> 1 & 3, block >> 3
            inside += _ZSTD_BLOCK_MAX if kind == _ZSTD_COMPRESSED else min(length, _ZSTD_BLOCK_MAX)
            at += 4 if kind == _ZSTD_REPEATED else 3 + length
        bound += inside if claimed is None else min(inside, claimed)
        at += 4 if has_checksum else 0
    return bound


def _lz4_bound(data: Bytes) -> int:
    """As much as these frames can unpack to, at most."""
    bound = at = 0
    size = len(data)
    while at + 7 <= size:
        magic = int.from_bytes(data[at : at + 4], "little")
        if magic & _SKIPPED_MASK == _SKIPPED:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if data[at : at + 4] != _LZ4_MAGIC:
            return bound
        flags = data[at + 4]
        block_max = 1 << 8 + 2 * (data[at + 5] >> 4 & 7)
        after_block = 4 if flags & 0x10 else 0
        at += 7 + (8 if flags & _LZ4_CONTENT_SIZE_BIT else 0) + (4 if flags & 0x01 else 0)
        while at + 4 <= size:
            length = int.from_bytes(data[at : at + 4], "little")
            at += 4
            if length == 0:
                break
            is_stored, length = length >> 31, length & 0x7FFFFFFF
            bound += min(block_max, length if is_stored else _LZ4_RATIO_MAX * length)
            at += length + after_block
        at += 4 if flags & 0x04 else 0
    return bound


# --- where it is put


class _Room:
    """What comes out, in one piece that was never copied as a whole."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._content = io.BytesIO()

    def add(self, part: bytes) -> None:
        if self._content.tell() + len(part) > self._max_bytes:
            raise _too_large(self._codec, self._max_bytes)
        self._content.write(part)

    def more(self, size: int) -> memoryview:
        """So many bytes behind those that are there, to be written to."""
        at = self._content.tell()
        return self.of(at + size)[at:]

    def of(self, size: int) -> memoryview:
        """All of it, made so large, to be written to."""
        if size > self._max_bytes:
            raise _too_large(self._codec, self._max_bytes)
        at = self._content.seek(0, io.SEEK_END)
        while at < size:
            at += self._content.write(_ZEROS[: size - at])
        return self._content.getbuffer()

    def content(self, length: int | None = None) -> bytes:
        """What was written, or the first `length` bytes of it."""
        self._content.truncate(length)
        return self._content.getvalue()


_GZIP_MAGIC: Final = b"\x1f\x8b"
_MAGICS: Final[dict[int, bytes]] = {Codec.LZ4: _LZ4_MAGIC, Codec.ZSTD: _ZSTD_MAGIC}

_COMPRESS: Final[dict[Codec, Callable[[Bytes, int | None], bytes]]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip_compress,
    Codec.SNAPPY: _snappy_compress,
    Codec.LZ4: _lz4_compress,
    Codec.ZSTD: _zstd_compress,
}
_DECOMPRESS: Final[dict[int, Callable[[Bytes, int], bytes]]] = {
    Codec.NONE: _copy,
    Codec.GZIP: _gzip_decompress,
    Codec.SNAPPY: _snappy_decompress,
    Codec.LZ4: _lz4_decompress,
    Codec.ZSTD: _zstd_decompress,
}
