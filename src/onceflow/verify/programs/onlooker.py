"""A read_committed consumer of a pipeline's outputs: like `reader`, and what it writes down is what it was shown of
which micro-batch, as a number of records and their checksum. The judge compares it with the final read.

    read     isolation
               end: moved           as in `history.py`
               end: shown           [[topic, partition, micro-batch or null, records, checksum], ...]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from onceflow.pipelines.judging import Written
from onceflow.pipelines.reading import written_in
from onceflow.pipelines.visibility import checksum
from onceflow.verify.programs.reader import Reader, main


class Onlooker(Reader):
    at_once = 2000

    def told(self, messages: list[Any]) -> dict[str, Any]:
        return {"shown": _summed_up(written_in(each) for each in messages)}


def _summed_up(records: Iterable[Written]) -> list[list[Any]]:
    found: defaultdict[tuple[str, int, int | None], list[Written]] = defaultdict(list)
    for each in records:
        found[each.topic, each.partition, each.batch].append(each)
    return [[*key, len(each), checksum(each)] for key, each in found.items()]


if __name__ == "__main__":
    sys.exit(main(Onlooker))
