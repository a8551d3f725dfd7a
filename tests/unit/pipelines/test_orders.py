"""The rules of the orders pipeline, one by one, on the steps themselves. Together: `test_orders_oracle.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from onceflow.pipelines.orders import PIPELINE, Order, Sale, Update, reserve, state, summarise
from onceflow.pipelines.parsing import dumps
from onceflow.pipelines.pipeline import DEAD_LETTERS, Record, Send
from onceflow.pipelines.reference import Message, Page
from tests.support.pipeline_in_memory import logged, run_in_memory

DOCUMENT = Path(__file__).parents[3] / "docs" / "pipelines" / "orders.md"

NOON = 1_767_614_400_000
MINUTE = 60_000


def order(
    order_id: str = "o-1", product: str = "tea", quantity: int = 1, at: int = NOON, arrived: int | None = None
) -> Record[Any]:
    value = Order(order_id, "ann", product, quantity, at)
    return Record(at if arrived is None else arrived, "orders", 0, 0, value)


def update(seq: int = 1, change: int = 10, price: int = 250, product: str = "tea") -> Record[Any]:
    return Record(NOON, "inventory", 1, 7, Update(product, seq, change, price))


def sale(order_id: str = "o-1", at: int = NOON, quantity: int = 1, total: int = 250, user: str = "ann") -> Sale:
    return Sale(at, 0, 0, user, order_id, at, quantity, total)


def sent(topic: str, yielded: Iterable[object]) -> list[Any]:
    """The values that were sent to a topic."""
    return [each.value for each in yielded if isinstance(each, Send) and each.topic == topic]


def reasons(yielded: Iterable[object]) -> list[str]:
    return [value["reason"] for value in sent("rejected_orders", yielded)]


def with_stock(units: int = 10, price: int = 250) -> dict[str, Any]:
    pages: dict[str, Any] = {}
    assert list(reserve(pages, [update(1, units, price)])) == []
    return pages


def stock(pages: dict[str, Any], product: str = "tea") -> int:
    found: int = pages["products"][product]["stock"]
    return found


# --- inventory


def test_first_update_makes_a_product_known() -> None:
    assert with_stock(10, 250)["products"]["tea"] == {"seq": 1, "stock": 10, "price": 250, "newest": 0, "slots": []}


def test_updates_add_to_the_stock_and_set_the_price() -> None:
    pages = with_stock(10, 250)
    assert list(reserve(pages, [update(2, 5, 300), update(5, -3, 280)])) == []
    assert (stock(pages), pages["products"]["tea"]["price"], pages["products"]["tea"]["seq"]) == (12, 280, 5)


def test_change_that_takes_more_than_there_is_leaves_nothing() -> None:
    pages = with_stock(10)
    assert list(reserve(pages, [update(2, -11)])) == []
    assert stock(pages) == 0


@pytest.mark.parametrize("seq", [3, 2, 0, -5])
def test_update_that_is_not_newer_is_a_dead_letter_and_changes_nothing(seq: int) -> None:
    pages = with_stock()
    list(reserve(pages, [update(3, 1)]))
    [letter] = sent(DEAD_LETTERS, reserve(pages, [update(seq, 100, 999)]))
    assert letter["reason"] == f"not newer than the last update of this product, 3: {seq}"
    assert (letter["topic"], letter["partition"], letter["offset"], letter["timestamp"]) == ("inventory", 1, 7, NOON)
    assert letter["value"] == f'{{"product": "tea", "seq": {seq}, "change": 100, "price": 999}}'
    assert pages["products"]["tea"] == {"seq": 3, "stock": 11, "price": 250, "newest": 0, "slots": []}


def test_update_before_the_first_does_not_make_a_product_known() -> None:
    pages: dict[str, Any] = {}
    assert sent(DEAD_LETTERS, reserve(pages, [update(0)]))[0]["reason"].startswith("not newer than")
    assert pages["products"] == {}


@pytest.mark.parametrize(
    ("change", "price", "reason"),
    [
        (1, -1, "the price is not between 0 and 100000000: -1"),
        (1, 100_000_001, "the price is not between 0 and 100000000: 100000001"),
        (1_000_000_001, 1, "the change is not between -1000000000 and 1000000000: 1000000001"),
        (-1_000_000_001, 1, "the change is not between -1000000000 and 1000000000: -1000000001"),
    ],
)
def test_impossible_update_is_a_dead_letter_and_does_not_use_up_its_number(
    change: int, price: int, reason: str
) -> None:
    pages = with_stock(10)
    [letter] = sent(DEAD_LETTERS, reserve(pages, [update(2, change, price)]))
    assert letter["reason"] == reason
    assert list(reserve(pages, [update(2, 1)])) == []
    assert stock(pages) == 11


def test_prices_and_changes_at_the_limits_are_good() -> None:
    pages = with_stock(1_000_000_000, 100_000_000)
    assert list(reserve(pages, [update(2, -1_000_000_000, 0)])) == []
    assert stock(pages) == 0


# --- orders


def test_accepted_order_takes_from_the_stock_and_goes_on_to_its_user() -> None:
    pages = with_stock(10, 250)
    validated, onward = reserve(pages, [Record(NOON + 5, "orders", 2, 9, Order("o-1", "ann", "tea", 4, NOON))])
    assert validated == Send(
        "validated_orders",
        "ann",
        {
            "order_id": "o-1",
            "user": "ann",
            "product": "tea",
            "quantity": 4,
            "at": NOON,
            "price": 250,
            "total": 1000,
            "stock_left": 6,
        },
    )
    assert onward == Sale(NOON + 5, 2, 9, "ann", "o-1", NOON, 4, 1000)
    assert stock(pages) == 6


def test_rejected_order_is_written_with_its_reason_and_goes_no_further() -> None:
    assert list(reserve(with_stock(3), [order(quantity=4)])) == [
        Send(
            "rejected_orders",
            "ann",
            {
                "order_id": "o-1",
                "user": "ann",
                "product": "tea",
                "quantity": 4,
                "at": NOON,
                "reason": "out_of_stock",
                "explanation": "4 wanted, 3 in stock",
            },
        )
    ]


def test_last_unit_is_sold_once() -> None:
    pages = with_stock(1)
    yielded = list(reserve(pages, [order("o-1"), order("o-2")]))
    assert [value["order_id"] for value in sent("validated_orders", yielded)] == ["o-1"]
    assert reasons(yielded) == ["out_of_stock"]
    assert stock(pages) == 0


def test_order_sees_the_updates_before_it_and_none_after_it() -> None:
    pages = with_stock(1)
    yielded = list(reserve(pages, [order("o-1", quantity=2), update(2, 5, 300), order("o-2", quantity=2)]))
    assert reasons(yielded) == ["out_of_stock"]
    assert [(value["order_id"], value["total"]) for value in sent("validated_orders", yielded)] == [("o-2", 600)]


def test_order_of_an_unknown_product_is_rejected_and_not_remembered() -> None:
    pages: dict[str, Any] = {}
    assert reasons(reserve(pages, [order()])) == ["unknown_product"]
    assert pages == {"products": {}}
    assert reasons(reserve(pages, [update(), order()])) == []


@pytest.mark.parametrize("quantity", [0, -1, 10_001, 2**63 - 1])
def test_impossible_quantity_is_rejected(quantity: int) -> None:
    pages = with_stock(1_000_000)
    assert reasons(reserve(pages, [order(quantity=quantity)])) == ["invalid_quantity"]
    assert stock(pages) == 1_000_000


@pytest.mark.parametrize("quantity", [1, 10_000])
def test_quantities_at_the_limits_are_good(quantity: int) -> None:
    assert reasons(reserve(with_stock(1_000_000), [order(quantity=quantity)])) == []


def test_order_may_be_ten_minutes_ahead_of_its_arrival_and_no_more() -> None:
    pages = with_stock()
    ahead = 10 * MINUTE
    yielded = list(reserve(pages, [order("o-1", at=NOON + ahead + 1, arrived=NOON)]))
    assert reasons(yielded) == ["from_the_future"]
    assert pages["products"]["tea"]["newest"] == 0
    assert reasons(reserve(pages, [order("o-2", at=NOON + ahead, arrived=NOON)])) == []
    assert pages["products"]["tea"]["newest"] == NOON + ahead


def test_order_may_be_an_hour_behind_the_newest_of_its_product_and_no_more() -> None:
    pages = with_stock()
    behind = 60 * MINUTE
    yielded = list(reserve(pages, [order("o-1"), order("o-2", at=NOON - behind), order("o-3", at=NOON - behind - 1)]))
    assert [value["order_id"] for value in sent("validated_orders", yielded)] == ["o-1", "o-2"]
    assert reasons(yielded) == ["too_late"]


def test_products_have_times_of_their_own() -> None:
    pages = with_stock()
    yielded = list(reserve(pages, [update(product="salt"), order("o-1"), order("o-2", "salt", at=NOON - 90 * MINUTE)]))
    assert reasons(yielded) == []


@pytest.mark.parametrize("first", [{}, {"quantity": 0}, {"quantity": 11}], ids=["sold", "invalid", "out of stock"])
def test_order_that_was_decided_is_a_duplicate_whatever_was_decided(first: dict[str, int]) -> None:
    pages = with_stock(10)
    list(reserve(pages, [order(**first)]))
    before = stock(pages)
    assert reasons(reserve(pages, [update(2, 100), order(**first)])) == ["duplicate"]
    assert stock(pages) == before + 100


def test_same_id_for_another_product_or_in_other_ten_minutes_is_another_order() -> None:
    pages = with_stock()
    later = order(at=NOON + 10 * MINUTE)
    assert reasons(reserve(pages, [update(product="salt"), order(), order(product="salt"), later])) == []
    assert reasons(reserve(pages, [order(at=NOON + 10 * MINUTE - 1)])) == ["duplicate"]


def test_ids_are_forgotten_when_their_ten_minutes_ended_an_hour_before_the_newest_order() -> None:
    pages = with_stock()
    list(reserve(pages, [order("o-1"), order("o-2", at=NOON + 70 * MINUTE - 1)]))
    assert {name for name in pages if name.startswith("seen/")} == {slot(NOON), slot(NOON + 60 * MINUTE)}
    list(reserve(pages, [order("o-3", at=NOON + 70 * MINUTE)]))
    assert {name for name in pages if name.startswith("seen/")} == {slot(NOON + 60 * MINUTE), slot(NOON + 70 * MINUTE)}
    assert pages["products"]["tea"]["slots"] == [(NOON + minutes * MINUTE) // 600_000 for minutes in (60, 70)]
    assert reasons(reserve(pages, [order("o-1")])) == ["too_late"]


def test_ids_of_another_product_in_the_same_page_stay() -> None:
    pages = with_stock()
    list(reserve(pages, [update(product="salt"), order(), order(product="salt"), order("o-2", at=NOON + 90 * MINUTE)]))
    assert pages[slot(NOON)] == {"salt": {"o-1": 1}}
    assert reasons(reserve(pages, [order(product="salt")])) == ["duplicate"]


def slot(at: int) -> str:
    return f"seen/{at // 600_000}"


# --- summaries


def test_summary_of_a_window_is_written_once_per_micro_batch() -> None:
    pages: dict[str, Any] = {}
    sales = [sale("o-1", NOON, 1, 250), sale("o-2", NOON + 1, 2, 900), sale("o-3", NOON + 2, 3, 900)]
    assert list(summarise(pages, sales)) == [
        Send(
            "user_summaries",
            "ann",
            {
                "user": "ann",
                "window_start": NOON,
                "window_end": NOON + 10 * MINUTE,
                "orders": 3,
                "units": 6,
                "total": 2050,
                "highest": 900,
                "highest_order": "o-2",
            },
        )
    ]


def test_window_goes_on_in_the_next_micro_batch() -> None:
    pages: dict[str, Any] = {}
    list(summarise(pages, [sale("o-1", NOON, 1, 250)]))
    [summary] = sent("user_summaries", summarise(pages, [sale("o-2", NOON + 10 * MINUTE - 1, 2, 100)]))
    assert (summary["orders"], summary["units"], summary["total"], summary["highest_order"]) == (2, 3, 350, "o-1")


def test_order_that_costs_nothing_can_be_the_highest() -> None:
    [summary] = sent("user_summaries", summarise({}, [sale(total=0)]))
    assert (summary["highest"], summary["highest_order"]) == (0, "o-1")


def test_window_is_open_until_the_watermark_has_reached_its_end() -> None:
    pages: dict[str, Any] = {}
    sales = [sale("o-1", NOON), sale("o-2", NOON + 20 * MINUTE - 1), sale("o-3", NOON + 1)]
    summaries = sent("user_summaries", summarise(pages, sales))
    assert [(value["window_start"], value["orders"]) for value in summaries] == [(NOON, 2), (NOON + 10 * MINUTE, 1)]


def test_late_order_is_reported_and_changes_nothing() -> None:
    pages: dict[str, Any] = {}
    list(summarise(pages, [sale("o-1", NOON), sale("o-2", NOON + 20 * MINUTE)]))
    before = repr(pages)
    assert list(summarise(pages, [sale("o-3", NOON + 5, 2, 500)])) == [
        Send(
            "late_orders",
            "ann",
            {
                "order_id": "o-3",
                "user": "ann",
                "at": NOON + 5,
                "quantity": 2,
                "total": 500,
                "window_start": NOON,
                "window_end": NOON + 10 * MINUTE,
                "watermark": NOON + 10 * MINUTE,
            },
        )
    ]
    assert repr(pages) == before


def test_window_that_changed_and_was_closed_in_one_micro_batch_is_written() -> None:
    summaries = sent("user_summaries", summarise({}, [sale("o-1", NOON), sale("o-2", NOON + 60 * MINUTE)]))
    assert [value["window_start"] for value in summaries] == [NOON, NOON + 60 * MINUTE]


def test_user_has_two_windows_at_most() -> None:
    pages: dict[str, Any] = {}
    for minutes in range(0, 120, 3):
        list(summarise(pages, [sale(f"o-{minutes}", NOON + minutes * MINUTE)]))
        [page] = pages.values()
        assert len(page["ann"]["windows"]) <= 2
    assert page["ann"]["newest"] == NOON + 117 * MINUTE


def test_users_have_watermarks_of_their_own() -> None:
    yielded = list(summarise({}, [sale("o-1", NOON + 90 * MINUTE), sale("o-2", NOON, user="bob")]))
    assert sent("late_orders", yielded) == []


def test_users_of_a_shard_are_spread_over_four_pages() -> None:
    pages: dict[str, Any] = {}
    list(summarise(pages, [sale(user=f"user-{number}") for number in range(200)]))
    assert sorted(pages) == ["users/0", "users/1", "users/2", "users/3"]
    assert all(30 < len(page) < 70 for page in pages.values())


# --- state in the words of the documentation


def test_state_is_told_by_product_and_user() -> None:
    pages = with_stock(10, 250)
    users: dict[str, Any] = {}
    sales = [each for each in reserve(pages, [order("o-1"), order("o-2", quantity=99)]) if isinstance(each, Sale)]
    list(summarise(users, sales))
    found = [Page(0, *each) for each in pages.items()] + [Page(1, *each) for each in users.items()]
    window = {"orders": 1, "units": 1, "total": 250, "highest": 250, "highest_order": "o-1"}
    assert state(found) == {
        "product tea": {"seq": 1, "stock": 9, "price": 250, "newest": NOON, "seen": {str(NOON): ["o-1", "o-2"]}},
        "user ann": {"newest": NOON, "windows": {str(NOON): window}},
    }


# --- the examples in the document

INPUT = [
    ("inventory", {"product": "product-1", "seq": 1, "change": 5, "price": 1250}, 0),
    ("orders", {"order_id": "o-1", "user": "user-7", "product": "product-1", "quantity": 2, "at": -180}, 25),
    ("inventory", {"product": "product-1", "seq": 1, "change": 5, "price": 1250}, 30),
    ("orders", {"order_id": "o-2", "user": "user-7", "product": "product-1", "quantity": 4, "at": 20}, 50),
    ("orders", {"order_id": "o-3", "user": "user-9", "product": "product-1", "quantity": "1", "at": 60}, 75),
    (
        "orders",
        {"order_id": "o-4", "user": "user-7", "product": "product-1", "quantity": 1, "at": 1_499_900},
        1_500_000,
    ),
    ("orders", {"order_id": "o-5", "user": "user-7", "product": "product-1", "quantity": 1, "at": 30_000}, 1_500_040),
]
NINE = 1_767_603_600_000


def test_examples_in_the_document_are_what_comes_out() -> None:
    messages = []
    for topic, value, arrived in INPUT:
        whole = {**value, "at": NINE + int(str(value["at"]))} if "at" in value else value
        messages.append(Message(topic, 0, str(value.get("user")).encode(), dumps(whole).encode(), NINE + arrived))
    written, _ = run_in_memory(PIPELINE, [logged(messages)])
    real = [each.value.decode() for each in messages if each.value] + [dumps(each.value) for each in written[0]]
    examples = re.findall(r"```json\n(.*?)\n```", DOCUMENT.read_text())
    assert len(examples) == 8
    assert [each for each in examples if each not in real] == []
