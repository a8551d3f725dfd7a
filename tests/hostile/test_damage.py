"""One file of a data directory is damaged: clients are told what they were told before, or it is refused by name.

Each byte of each file with a bit flipped, each file cut, emptied, longer, gone, one at a time; after a clean stop, and
after `kill -9`. A sample each time, all of it in a soak.

One thing cannot be told from a crash, and is cut with a warning: what was written to a log after its last checkpoint.
"""

from __future__ import annotations

import logging
import random
from collections import Counter

import pytest

from onceflow.errors import CorruptLog
from tests.support.damaged import Damage, Directory, damages, directory, files_of, is_unvouched, start, told
from tests.support.effort import SOAK

SAMPLE = 1000
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
    all_of_them = list(damages(before.files, random.Random(seed), 2 if SOAK else 1))
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
