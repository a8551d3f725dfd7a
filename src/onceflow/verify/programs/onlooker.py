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

from confluent_kafka import KafkaError, KafkaException

from onceflow.pipelines.judging import Written
from onceflow.pipelines.reading import written_in
from onceflow.pipelines.visibility import checksum
from onceflow.verify.history import Outcome
from onceflow.verify.programs.life import Life
from onceflow.verify.programs.reader import POLL_S, Reader

POLL_MAX = 2000


class _Onlooker(Reader):
    def run(self) -> None:
        while not self._life.is_over:
            op = self._life.record.begin("read", isolation="read_committed")
            messages = self._consumer.consume(POLL_MAX, timeout=POLL_S)
            good = [each for each in messages if each.error() is None]
            for each in messages:
                if (error := each.error()) is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    problem = f"{each.topic()}-{each.partition()} no longer has a reader's position: {error}"
                    self._life.record.end(op, Outcome.FAILED, problem=problem)
                    raise KafkaException(error)
            shown = _summed_up(written_in(each) for each in good)
            self._life.record.end(op, Outcome.OK, moved=self._moved(good), shown=shown)


def _summed_up(records: Iterable[Written]) -> list[list[Any]]:
    found: defaultdict[tuple[str, int, int | None], list[Written]] = defaultdict(list)
    for each in records:
        found[each.topic, each.partition, each.batch].append(each)
    return [[*key, len(each), checksum(each)] for key, each in found.items()]


def main() -> int:
    life = Life.begin()
    try:
        onlooker = _Onlooker(life)
        onlooker.run()
    except KafkaException as problem:
        print(problem, file=sys.stderr)
        return 1
    onlooker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
