"""Each codec against itself, against what clients write and read, and against data that mean harm."""

from __future__ import annotations

import contextlib
import gc
import gzip
import random
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Iterator

import aiokafka.codec
import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.support.effort import examples

from onceflow.errors import ConfigError, MalformedMessage
from onceflow.wire.compression import DEFAULT_LEVELS, LEVELS, Codec, compress, decompress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas in an old way
    import kafka.codec

PACKED = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
AIOKAFKA = {
    Codec.GZIP: (aiokafka.codec.gzip_encode, aiokafka.codec.gzip_decode),
    Codec.SNAPPY: (aiokafka.codec.snappy_encode, aiokafka.codec.snappy_decode),
    Codec.LZ4: (aiokafka.codec.lz4_encode, aiokafka.codec.lz4_decode),
    Codec.ZSTD: (aiokafka.codec.zstd_encode, aiokafka.codec.zstd_decode),
}
XERIAL = b"\x82SNAPPY\x00"
MIB = 1024 * 1024


def some_text(size: int) -> bytes:
    words = [b"order", b"item", b"price", b"euro", b"shipped"]
    draw = random.Random(size)
    return b" ".join(draw.choice(words) + b"%d" % draw.randrange(1000) for _ in range(size // 5 + 1))[:size]


# --- there and back


@pytest.mark.parametrize("codec", list(Codec))
@given(data=st.binary(max_size=2000) | st.integers(0, 200_000).map(some_text))
def test_what_was_packed_unpacks_to_the_same(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_a_view_into_a_larger_buffer_is_enough(codec: Codec) -> None:
    data = some_text(5000)
    packed = compress(codec, memoryview(b"..." + data)[3:])
    assert decompress(codec, memoryview(b"..." + packed + b"...")[3:-3]) == data
    assert decompress(codec, bytearray(packed)) == data


@pytest.mark.parametrize("codec", LEVELS)
def test_every_level_that_kafka_accepts_can_be_read_again(codec: Codec) -> None:
    data = some_text(3000)
    for level in LEVELS[codec][-25:]:
        assert decompress(codec, compress(codec, data, level)) == data


@pytest.mark.parametrize(("codec", "weak", "strong"), [(Codec.GZIP, 1, 9), (Codec.LZ4, 1, 12), (Codec.ZSTD, 1, 19)])
def test_a_higher_level_packs_tighter(codec: Codec, weak: int, strong: int) -> None:
    data = some_text(200_000)
    assert len(compress(codec, data, strong)) < len(compress(codec, data, weak))


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 0), (Codec.GZIP, 10), (Codec.LZ4, 18), (Codec.ZSTD, 23)])
def test_a_level_that_does_not_exist_is_refused_with_the_range(codec: Codec, level: int) -> None:
    with pytest.raises(ConfigError, match=rf"level {level} does not exist for {codec.name.lower()}: choose from"):
        compress(codec, b"data", level)


@pytest.mark.parametrize("codec", DEFAULT_LEVELS)
def test_kafkas_default_level_is_our_default(codec: Codec) -> None:
    data = some_text(50_000)
    assert compress(codec, data, DEFAULT_LEVELS[codec]) == compress(codec, data)


def test_snappy_has_no_levels_and_ignores_one() -> None:
    assert compress(Codec.SNAPPY, b"data", 9) == compress(Codec.SNAPPY, b"data")


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_in_a_batch_is_malformed(codec: int) -> None:
    with pytest.raises(MalformedMessage, match=f"no compression codec {codec}"):
        decompress(codec, b"data")


# --- what clients write and read


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("size", [1, 1000, 32 * 1024, 32 * 1024 + 1, 300_000])
def test_aiokafka_and_we_read_each_other(codec: Codec, size: int) -> None:
    encode, decode = AIOKAFKA[codec]
    data = some_text(size)
    assert decompress(codec, encode(data)) == data
    assert decode(compress(codec, data)) == data


def test_kafka_python_and_we_read_each_other() -> None:
    """In gzip: for the other codecs it needs libraries that are not installed here."""
    data = some_text(100_000)
    assert decompress(Codec.GZIP, kafka.codec.gzip_encode(data)) == data
    assert kafka.codec.gzip_decode(compress(Codec.GZIP, data)) == data


def test_snappy_is_written_in_the_blocks_of_javas_clients() -> None:
    data = some_text(32 * 1024 + 5)
    packed = compress(Codec.SNAPPY, data)
    assert packed[:16] == XERIAL + struct.pack(">ii", 1, 1)
    (first,) = struct.unpack_from(">i", packed, 16)
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == data[: 32 * 1024]
    (second,) = struct.unpack_from(">i", packed, 20 + first)
    assert len(packed) == 24 + first + second


def test_raw_snappy_as_librdkafka_writes_it_is_read() -> None:
    data = some_text(50_000)
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(data))) == data


def test_xerial_versions_in_the_wrong_byte_order_are_read() -> None:
    packed = bytearray(compress(Codec.SNAPPY, b"data"))
    packed[8:16] = struct.pack("<ii", 1, 1)
    assert decompress(Codec.SNAPPY, packed) == b"data"


def test_several_streams_in_a_row_are_one() -> None:
    data = some_text(1000)
    for codec in PACKED:
        assert decompress(codec, compress(codec, data) + compress(codec, b"") + compress(codec, data)) == data * 2


def test_linked_lz4_blocks_are_read_and_independent_ones_written() -> None:
    data = some_text(200_000)
    linked = cramjam.lz4.Compressor(block_linked=True, content_checksum=True)
    linked.compress(data)
    assert decompress(Codec.LZ4, bytes(linked.finish())) == data
    independent_blocks = 0x20
    assert compress(Codec.LZ4, data)[4] & independent_blocks


@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
def test_lz4_frames_of_every_kind_are_read(block_size: int, size: int) -> None:
    data = some_text(size // 2) + bytes(size - size // 2)
    for checksums in (False, True):
        for store_size in (False, True):
            frame = lz4.frame.compress(
                data,
                block_size=block_size,
                block_checksum=checksums,
                content_checksum=checksums,
                store_size=store_size,
            )
            assert decompress(Codec.LZ4, frame) == data
            assert decompress(Codec.LZ4, skipped(b"ours") + frame + skipped(b"") + frame) == data * 2


@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
def test_zstd_frames_of_every_kind_are_read(size: int) -> None:
    data = some_text(size // 2) + bytes(size - size // 2)
    for level in (-5, 3, 9):
        for write_size in (False, True):
            packer = zstandard.ZstdCompressor(
                level=level, write_checksum=bool(level % 2), write_content_size=write_size
            )
            frame = packer.compress(data)
            assert decompress(Codec.ZSTD, frame) == data
            assert decompress(Codec.ZSTD, skipped(b"ours") + frame + skipped(b"") + frame) == data * 2


def test_zstd_blocks_that_are_flushed_when_they_are_small_are_read() -> None:
    """So many that all their blocks together might hold more than the limit."""
    packer = zstandard.ZstdCompressor().compressobj()
    flushed = zstandard.COMPRESSOBJ_FLUSH_BLOCK
    pieces = [packer.compress(b"record %d" % at) + packer.flush(flushed) for at in range(2000)]
    frame = b"".join(pieces) + packer.flush()
    assert decompress(Codec.ZSTD, frame) == b"".join(b"record %d" % at for at in range(2000))


def skipped(content: bytes) -> bytes:
    """A frame that both formats pass over."""
    return struct.pack("<II", 0x184D2A53, len(content)) + content


# --- limits


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("size", [0, 1, 100, 65_536, 65_537, 300_000, 3_000_000])
def test_exactly_the_limit_is_fine_and_one_byte_more_is_not(codec: Codec, size: int) -> None:
    data = bytes(size)
    packed = compress(codec, data)
    assert decompress(codec, packed, max_bytes=size) == data
    with pytest.raises(MalformedMessage, match=f"unpack to more than {size} bytes"):
        decompress(codec, compress(codec, data + b"x"), max_bytes=size)


@pytest.mark.parametrize("codec", PACKED)
def test_the_limit_is_on_the_sum_of_all_frames(codec: Codec) -> None:
    frames = compress(codec, bytes(1000)) * 10
    assert len(decompress(codec, frames, max_bytes=10_000)) == 10_000
    with pytest.raises(MalformedMessage, match="more than 9999 bytes"):
        decompress(codec, frames, max_bytes=9999)


BOMB = """
import resource, sys
from onceflow.errors import MalformedMessage
from onceflow.wire.compression import compress, decompress

codec = int(sys.argv[1])
bomb = compress(codec, bytes(1024 * 1024)) * 1024 if codec != 2 else sys.stdin.buffer.read()
peak_kib = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
decompress(codec, compress(codec, bytes(1024 * 1024)))
before = peak_kib()
try:
    decompress(codec, bomb, max_bytes=1024 * 1024)
except MalformedMessage:
    print(peak_kib() - before)
"""


@pytest.mark.parametrize("codec", PACKED)
def test_a_bomb_of_a_gigabyte_is_refused_without_unpacking_it(codec: Codec) -> None:
    """In a process of its own: the libraries allocate where Python's own accounting does not look."""
    claims_a_gigabyte = b"\x80\x80\x80\x80\x04" + b"\x00"  # snappy: the length, then a literal
    done = subprocess.run(
        [sys.executable, "-c", BOMB, str(int(codec))],
        input=claims_a_gigabyte,
        capture_output=True,
        check=True,
    )
    grown_kib = int(done.stdout)
    assert grown_kib < 16 * 1024


def test_a_single_zstd_frame_that_states_its_size_is_refused_by_its_header() -> None:
    header = b"\x28\xb5\x2f\xfd"
    for claim in (
        b"\x60" + struct.pack("<H", 65_535),  # 2 bytes, to which 256 are added
        b"\xa0" + struct.pack("<I", 70_000),
        b"\xe0" + struct.pack("<Q", 2**62),
        b"\xc0\x50" + struct.pack("<Q", 2**62),  # with a window byte
        b"\xe3\x00\x00\x00\x00" + struct.pack("<Q", 2**62),  # with a dictionary
    ):
        with pytest.raises(MalformedMessage, match="zstd data unpack to more than 65600 bytes"):
            decompress(Codec.ZSTD, header + claim, max_bytes=65_600)


def test_an_lz4_frame_that_states_its_size_is_refused_by_its_header() -> None:
    with pytest.raises(MalformedMessage, match="lz4 data unpack to more than 100 bytes"):
        decompress(Codec.LZ4, b"\x04\x22\x4d\x18\x68\x40" + struct.pack("<Q", 101) + b"\x00", max_bytes=100)


def test_empty_gzip_members_do_not_take_quadratic_time() -> None:
    members = gzip.compress(b"") * (4 * MIB // 20)
    started = time.thread_time()  # of the CPU: others may keep the machine busy
    assert decompress(Codec.GZIP, members) == b""
    assert time.thread_time() - started < 10  # about 1 s; where each member copies all the rest it is about 16 s


# --- damage


@contextlib.contextmanager
def no_garbage_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def with_damage(codec: Codec, size: int) -> bytes:
    packed = bytearray(compress(codec, some_text(size)))
    for at in range(len(packed) // 2, len(packed) // 2 + 20):
        packed[at] ^= 0x55
    return bytes(packed)


@pytest.mark.parametrize("codec", PACKED)
def test_nothing_is_kept_of_data_that_were_corrupt(codec: Codec) -> None:
    """Without waiting for the garbage collector: 64 MB each, for as long as it does not come."""
    corrupt = with_damage(codec, 300_000)
    with no_garbage_collector():
        for _ in range(3):
            with pytest.raises(MalformedMessage):
                decompress(codec, corrupt, max_bytes=16 * MIB)
        kept, _ = tracemalloc.get_traced_memory()
    assert kept < MIB


@pytest.mark.parametrize("codec", PACKED)
def test_data_that_were_corrupt_cost_what_they_could_be_and_not_what_is_allowed(codec: Codec) -> None:
    corrupt = with_damage(codec, 300_000)
    with no_garbage_collector():
        with pytest.raises(MalformedMessage, match="data are corrupt: "):
            decompress(codec, corrupt, max_bytes=1024 * MIB)
        _, most = tracemalloc.get_traced_memory()
    assert most < 4 * MIB


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=300))
def test_garbage_is_malformed(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(MalformedMessage):  # a few bytes can be a valid, tiny stream
        assert len(decompress(codec, data, max_bytes=MIB)) <= MIB


@pytest.mark.parametrize("codec", PACKED)
@examples(100, soak=3_000)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255), size=st.integers(0, 5000))
def test_a_changed_byte_is_malformed_or_harmless(codec: Codec, at: int, flip: int, size: int) -> None:
    packed = bytearray(compress(codec, some_text(size)))
    packed[at % len(packed)] ^= flip
    with contextlib.suppress(MalformedMessage):
        assert len(decompress(codec, packed, max_bytes=MIB)) <= MIB


@pytest.mark.parametrize("codec", PACKED)
@given(size=st.integers(1, 5000), cut=st.integers(1, 5000))
def test_what_is_cut_short_is_malformed(codec: Codec, size: int, cut: int) -> None:
    data = some_text(size)
    packed = compress(codec, data)
    cut = min(cut, len(packed))
    if codec == Codec.SNAPPY and len(packed) - cut == 16:
        return  # a header and no blocks: an empty stream
    with pytest.raises(MalformedMessage):
        decompress(codec, packed[:-cut], max_bytes=MIB)


@pytest.mark.parametrize("codec", PACKED)
def test_nothing_is_malformed(codec: Codec) -> None:
    with pytest.raises(MalformedMessage):
        decompress(codec, b"")


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_garbage_after_the_data_is_malformed(codec: Codec) -> None:
    with pytest.raises(MalformedMessage):
        decompress(codec, compress(codec, b"data") + b"garbage")


@pytest.mark.parametrize("length", [0, -1, 7, 2**31 - 1, -(2**31)])
def test_a_xerial_block_of_impossible_length_is_malformed(length: int) -> None:
    stream = XERIAL + struct.pack(">iii", 1, 1, length) + b"\x04\x0cdata"
    with pytest.raises(MalformedMessage, match=f"a block of {length} bytes is announced and 6 are left"):
        decompress(Codec.SNAPPY, stream)
