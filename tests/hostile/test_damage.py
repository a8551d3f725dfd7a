"""One file of a data directory is damaged: clients are told what they were told before, or it is refused by name.

Each byte of each file with a bit flipped, each file cut, emptied, longer, gone, one at a time; after a clean stop, and
after `kill -9`. A sample each time, all of it in a soak.

One thing cannot be told from a crash, and is cut with a warning: what was written to a log after its last checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onceflow.broker import complaints
from onceflow.errors import CorruptLog, ErrorCode
from onceflow.wire.batch import read_header
from onceflow.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.support.damaged import Damage, Directory, damages, directory, files_of, is_unvouched, start, told
from tests.support.effort import SOAK
from tests.support.memory_broker import MemoryBroker
from tests.support.raw import batch, fetch_request, produce_request

SAMPLE = 600
"""Of each directory; all of them in a soak."""


@pytest.fixture(scope="module", params=[True, False], ids=["clean stop", "kill -9"])
def before(request: pytest.FixtureRequest) -> Directory:
    logging.disable()  # a line for each of the thousands
    try:
        return directory(clean=request.param)
    finally:
        logging.disable(logging.NOTSET)


def test_there_is_one_of_everything(before: Directory) -> None:
    suffixes = Counter(path.suffix for path in files_of(before.files))
    assert suffixes.keys() == {".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checksums", ".json"}
    assert suffixes[".log"] > 20
    assert told(start(before.files.kill(), before.clock), before.answers) == before.answers


@pytest.mark.timeout(14_400 if SOAK else 600)
def test_a_damaged_file_changes_no_answer_unless_it_is_refused_by_name(before: Directory) -> None:
    dice = random.Random()
    seed = dice.getrandbits(32)
    all_of_them = list(damages(before.files, random.Random(seed)))
    chosen = all_of_them if SOAK else dice.sample(all_of_them, SAMPLE)
    wrong = []
    logging.disable()
    try:
        for damage in chosen:
            wrong += [f"{damage}: {problem}" for problem in problems(before, damage)]
    finally:
        logging.disable(logging.NOTSET)
    assert not wrong, f"seed {seed}, {len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:30])


def problems(before: Directory, damage: Damage) -> list[str]:
    files = before.files.kill()
    damage.do(files)
    try:
        answers = told(start(files, before.clock), before.answers)
    except CorruptLog as error:
        return [] if names(str(error), damage) else [f"the start is refused, without its name: {error}"]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    is_cut = is_unvouched(damage, before.files)
    found = []
    for question, answer in before.answers.items():
        given = answers.get(question, "nothing")
        if given == answer or (is_cut and is_less(question, given, answer)):
            continue
        if not (isinstance(given, str) and given.startswith("refused") and names(given, damage)):
            found.append(f"{question}: {str(given)[:300]} instead of {str(answer)[:300]}")
    return found


def is_less(question: tuple[object, ...], given: object, answer: object) -> bool:
    """Whether an answer can be that of a log that ends earlier: what it has of the records is as it was.

    A coordinator whose log ends earlier may write a marker again, behind the end.
    """
    if question[0] == "read":
        return given in ("nothing", (b"", False)) or answer == (b"", False)
    return question[0] in ("ask", "ends", "producers", "time")


def names(sentence: str, damage: Damage) -> bool:
    """A file that is gone may be said by its folder, or by what stands beside it."""
    return str(damage.path) in sentence or (damage.content is None and str(damage.path.parent) in sentence)


# What clients are told


def changed(before: Directory, topic: str, base: int, at: int) -> tuple[MemoryBroker, str]:
    """A broker with one byte changed in one segment, and the path of that."""
    files = before.files.kill()
    path = Path(f"/data/{topic}-0/{base:020d}.log")
    data = bytearray(files.read_bytes(path))
    data[at] ^= 1
    files.replace(path, bytes(data))
    return start(files, before.clock), str(path)


def fetched(broker: MemoryBroker, offset: int, **rest: int) -> Any:
    request = fetch_request("plain", offset, max_wait_ms=0, **rest)
    [[answer]] = [each.partitions for each in broker.ask(request, 12).responses]
    return answer


@pytest.mark.parametrize("field", [7, 11, 15, 70], ids=["offset", "length", "leader epoch", "records"])
def test_a_client_that_reads_there_is_told_and_the_log_says_which_file(
    before: Directory, field: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complaints, "_quiet_until_s", {})
    broker, path = changed(before, "plain", 0, field)
    log = broker.node.topics.named("plain").partitions[0].log
    beyond = log.segments[1].base_offset
    for _ in range(2):
        assert fetched(broker, 0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert [path in record.getMessage() for record in caplog.records if "is damaged" in record.getMessage()] == [True]
    answer = fetched(broker, beyond)
    assert answer.error_code == ErrorCode.NONE
    assert read_header(answer.records).base_offset == beyond
    asked = ListOffsetsTopic(name="plain", partitions=[ListOffsetsPartition(partition_index=0, timestamp=1)])
    [[found]] = [each.partitions for each in broker.ask(ListOffsetsRequest(topics=[asked]), 7).topics]
    assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_fetch_that_waits_where_nothing_can_be_read_keeps_no_producer_from_its_answer(before: Directory) -> None:
    async def talk() -> None:
        broker, _ = changed(before, "plain", 0, 70)
        log = broker.node.topics.named("plain").partitions[0].log
        end = log.high_watermark
        waiting = broker.send(fetch_request("plain", end, max_wait_ms=60_000), 12)
        assert not waiting.is_there
        log.readable_end = lambda **_: (_ for _ in ()).throw(CorruptLog("as it happens"))  # type: ignore[method-assign]
        request = produce_request("plain", batch("more", timestamps=[broker.clock.now_ms()]))
        [[produced]] = [each.partition_responses for each in broker.ask(request, 9).responses]
        assert produced.error_code == ErrorCode.NONE
        while not waiting.is_there:
            await asyncio.sleep(0)
        del log.readable_end  # type: ignore[attr-defined]
        [[answer]] = [each.partitions for each in waiting.message.responses]
        assert answer.error_code == ErrorCode.NONE
        assert read_header(answer.records).base_offset == end

    asyncio.run(talk())
