"""`consume_into` as a program, which pauses for its killer where it is told to, and says so on stdout.

Its argument is JSON: url, topic, bootstrap, folder, kafka; and if wanted

- `pause`: where to say "paused WHERE" and wait until there is a file `go on` in the folder, the first time that
  `after` records were committed: "before the transaction" (records are read), "in the function", "after the commit";
- `idle_s`: how long PostgreSQL lets a transaction be idle;
- further settings of `consume_into`.

It ends when there is a file `stop` in the folder. "finished" is its last word, with what it has done.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

from onceflow.sinks import consuming
from onceflow.sinks.consumer_transactions import Transactions, Work
from onceflow.sinks.consuming import Committed, Record, consume_into
from onceflow.sinks.databases import postgresql_session
from tests.sinks.consuming import land
from tests.support.waiting import eventually

PAUSED_S = 240.0


class Pausing:
    def __init__(self, folder: Path, where: str | None, after: int) -> None:
        self._folder = folder
        self._where = where
        self._after = after
        self._committed = 0

    def reached(self, where: str) -> None:
        if self._where == where and self._committed >= self._after:
            self._where = None
            print("paused", where, flush=True)
            eventually((self._folder / "go on").exists, "it goes on", timeout_s=PAUSED_S)
            print("going on", flush=True)

    def on_commit(self, committed: Committed) -> None:
        self._committed += committed.records
        print("committed", committed.records, flush=True)
        self.reached("after the commit")


class PausingTransactions(Transactions):
    pausing: Pausing

    def apply(self, work: Work) -> None:
        if work.records:
            self.pausing.reached("before the transaction")
        super().apply(work)


def main(options: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    folder = Path(options.pop("folder"))
    pausing = Pausing(folder, options.pop("pause", None), options.pop("after", 0))
    PausingTransactions.pausing = pausing
    consuming.Transactions = PausingTransactions  # type: ignore[misc]
    postgresql_session.IDLE_IN_TRANSACTION_S = options.pop("idle_s", 60)  # type: ignore[misc]

    def function(cursor: Any, records: list[Record]) -> None:
        land(cursor, records)
        pausing.reached("in the function")

    url, topic, bootstrap = (options.pop(name) for name in ("url", "topic", "bootstrap"))
    consumed = consume_into(
        url,
        topic,
        function,
        bootstrap_servers=bootstrap,
        stop=(folder / "stop").exists,
        on_commit=pausing.on_commit,
        **{"group": topic, "max_records": 20, **options},
    )
    print("finished", consumed, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
