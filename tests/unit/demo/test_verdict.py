"""The demo's verdict: what its job writes, as it writes it, is clean; and what goes wrong there has a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.orders import SOURCE_PARTITIONS, Chronicles, Names, order
from demo.spark_copy_and_count import judge

from onceflow.verify.history import Outcome, Record, Seen
from onceflow.verify.verdict import Verdict

NAMES = Names.with_ending("")
ORDERS = 60
PER_BATCH = 20


def transaction(number: int) -> str:
    """The second driver goes on with the third micro-batch."""
    batch = number // PER_BATCH
    return f"driver.{2 if batch == 2 else 1}/{batch}"


def orders() -> list[Seen]:
    return [
        Seen(NAMES.orders, number % SOURCE_PARTITIONS, number // SOURCE_PARTITIONS, order(number))
        for number in range(ORDERS)
    ]


def copies() -> list[Seen]:
    return [
        Seen(NAMES.copies, 0, number, order(number)._replace(transaction=transaction(number)))
        for number in range(ORDERS)
    ]


def counts() -> list[Seen]:
    """After each micro-batch, the new count of each customer that it has an order of."""
    total: Counter[str | None] = Counter()
    found: list[Seen] = []
    for first in range(0, ORDERS, PER_BATCH):
        customers = [order(number).key for number in range(first, first + PER_BATCH)]
        total.update(customers)
        for customer in dict.fromkeys(customers):
            record = Record(state=customer, n=total[customer], transaction=transaction(first))
            found.append(Seen(NAMES.counts, 0, len(found), record))
    return found


@pytest.fixture
def chronicles(tmp_path: Path) -> Chronicles:
    """The shop writes, two drivers commit, and the first is killed in between."""
    found = Chronicles(tmp_path / "history")
    shop = found.recorder("shop")
    op = shop.begin("write", records=[[*seen.place, seen.record.id] for seen in orders()])
    shop.end(op, Outcome.OK)
    for process, batches in (("driver.1", (0, 1)), ("driver.2", (2,))):
        driver = found.recorder(process)
        driver.end(driver.begin("take", transactional_id=NAMES.app_id), Outcome.OK)
        for batch in batches:
            asked = driver.begin("commit", transaction=f"{process}/{batch}", group=NAMES.app_id, offsets=[])
            driver.end(asked, Outcome.OK)
    nemesis = found.recorder("nemesis")
    nemesis.end(nemesis.begin("fault", kind="kill", target="driver.1"), Outcome.OK)
    return found


def verdict_on(chronicles: Chronicles, final: list[Seen], *problems: str) -> Verdict:
    return judge(NAMES, chronicles, final, problems, seed=1, brokers="onceflow")[0]


def test_every_order_copied_and_counted_once_is_clean(chronicles: Chronicles) -> None:
    verdict = verdict_on(chronicles, orders() + copies() + counts())
    assert verdict.is_clean, verdict.to_json()
    assert [each.asked["target"] for each in verdict.faults] == ["driver.1"]
    assert verdict.counts["commit ok"] == 3


def without_a_copy(found: list[Seen]) -> list[Seen]:
    return [seen for seen in found if (seen.topic, seen.record.id) != (NAMES.copies, "order-7")]


def with_a_copy_twice(found: list[Seen]) -> list[Seen]:
    return [*found, next(seen for seen in found if seen.topic == NAMES.copies)._replace(offset=ORDERS)]


def with_a_wrong_count(found: list[Seen]) -> list[Seen]:
    last = found[-1]
    return [*found[:-1], last._replace(record=last.record._replace(n=(last.record.n or 0) + 1))]


def with_a_copy_of_nothing(found: list[Seen]) -> list[Seen]:
    return [*found, Seen(NAMES.copies, 1, 0, Record(id="order-999", key="nobody", transaction=transaction(0)))]


def with_a_copy_of_a_killed_driver(found: list[Seen]) -> list[Seen]:
    """In a transaction that its successor, by taking over, has aborted."""
    first = next(at for at, seen in enumerate(found) if seen.topic == NAMES.copies)
    record = found[first].record._replace(transaction="driver.1/2")
    return [*found[:first], found[first]._replace(record=record), *found[first + 1 :]]


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (without_a_copy, "lost write"),
        (with_a_copy_twice, "duplicate"),
        (with_a_wrong_count, "state mismatch"),
        (with_a_copy_of_nothing, "phantom"),
        (with_a_copy_of_a_killed_driver, "fenced write"),
    ],
)
def test_what_went_wrong_is_named(chronicles: Chronicles, spoil: Callable[[list[Seen]], list[Seen]], name: str) -> None:
    verdict = verdict_on(chronicles, spoil(orders() + copies() + counts()))
    assert name in {each.name for each in verdict.anomalies}
    assert not verdict.is_clean


def test_a_run_that_did_not_come_to_its_end_is_not_clean_even_if_nothing_is_missing(chronicles: Chronicles) -> None:
    verdict = verdict_on(chronicles, orders() + copies() + counts(), "a transaction stays open on 2 partitions")
    assert not verdict.anomalies
    assert not verdict.is_clean
