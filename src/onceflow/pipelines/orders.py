"""Orders: checked against the stock, and summed up by user.

    orders, inventory --> 1 reserve, by product --> validated_orders, rejected_orders
                                  |
                                  +--> 2 summarise, by user --> user_summaries, late_orders

Every order that fits its schema ends exactly once, in `validated_orders` or in `rejected_orders`. Rules, examples and
how the state is kept: docs/pipelines/orders.md. Times are in ms, money is in cents.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from onceflow.pipelines.pipeline import Input, Pipeline, Record, Send, State, Step, dead_letter
from onceflow.pipelines.reference import Page
from onceflow.pipelines.tables import Lands, Time

__all__ = ["PIPELINE", "state"]

MINUTE: Final = 60_000
AHEAD_MAX: Final = 10 * MINUTE
"""How far the time of an order may be ahead of its arrival: one wrong clock must not make everybody else late."""
HORIZON: Final = 60 * MINUTE
"""How far behind its product's newest order one may be: so long are the ids of orders remembered."""
SLOT: Final = 10 * MINUTE
"""The ids of so much time are remembered, and forgotten, together."""
WINDOW: Final = 10 * MINUTE
LATENESS: Final = 10 * MINUTE
"""How long after its end a window is still open, by the user's newest order."""
QUANTITY_MAX: Final = 10_000
CHANGE_MAX: Final = 1_000_000_000
PRICE_MAX: Final = 100_000_000
USER_PAGES: Final = 4
"""Into how many pages the users of a shard are spread."""


# --- what comes in


class Order(NamedTuple):
    order_id: str
    user: str
    product: str
    quantity: int
    at: int


class Update(NamedTuple):
    product: str
    seq: int
    change: int
    price: int


# --- step 1: the stock of products, and orders that take from it


class Sale(NamedTuple):
    """A validated order on its way to its user. Sorts in the order of arrival."""

    timestamp: int
    partition: int
    offset: int
    user: str
    order_id: str
    at: int
    quantity: int
    total: int


def reserve(state: State, records: list[Record[Any]]) -> Iterator[Send | Sale]:
    """By product: inventory updates are applied, and orders decided."""
    products = state.setdefault("products", {})
    seen = Seen(state)
    for record in records:
        timestamp, topic, partition, offset, value = record
        if topic == "inventory":
            if problem := apply(value, products):
                yield dead_letter(record, problem)
            continue
        order_id, user, name, quantity, at = value
        order = {"order_id": order_id, "user": user, "product": name, "quantity": quantity, "at": at}
        product = products.get(name)
        if refusal := refused(value, timestamp, product, seen):
            order["reason"], order["explanation"] = refusal
            yield Send("rejected_orders", user, order)
            continue
        product["stock"] -= quantity
        total = quantity * product["price"]
        order["price"], order["total"], order["stock_left"] = product["price"], total, product["stock"]
        yield Send("validated_orders", user, order)
        yield Sale(timestamp, partition, offset, user, order_id, at, quantity, total)
    seen.forget(products)


def apply(update: Update, products: dict[str, Any]) -> str | None:
    """Returns why it cannot be applied. One that was applied before is not applied again: that is what `seq` is for."""
    if not 0 <= update.price <= PRICE_MAX:
        return f"the price is not between 0 and {PRICE_MAX}: {update.price}"
    if not -CHANGE_MAX <= update.change <= CHANGE_MAX:
        return f"the change is not between {-CHANGE_MAX} and {CHANGE_MAX}: {update.change}"
    product = products.get(update.product) or {"seq": 0, "stock": 0, "price": 0, "newest": 0, "slots": []}
    if update.seq <= product["seq"]:
        return f"not newer than the last update of this product, {product['seq']}: {update.seq}"
    product["seq"], product["price"] = update.seq, update.price
    product["stock"] = max(0, product["stock"] + update.change)
    products[update.product] = product
    return None


def refused(order: Order, arrived: int, product: dict[str, Any] | None, seen: Seen) -> tuple[str, str] | None:
    """Why an order is not accepted: a code and a sentence. An order that gets as far as its id is remembered."""
    order_id, _, name, quantity, at = order
    if product is None:
        return "unknown_product", f"there is no product {name}"
    if at > arrived + AHEAD_MAX:
        return "from_the_future", f"{at - arrived} ms ahead of its arrival"
    if at < product["newest"] - HORIZON:
        return "too_late", f"{product['newest'] - at} ms behind the newest order of this product"
    ids = seen.ids(name, product, at)
    if order_id in ids:
        return "duplicate", f"order {order_id} has been decided before"
    ids[order_id] = 1
    if at > product["newest"]:
        product["newest"] = at
    if not 1 <= quantity <= QUANTITY_MAX:
        return "invalid_quantity", f"the quantity is not between 1 and {QUANTITY_MAX}: {quantity}"
    if quantity > product["stock"]:
        return "out_of_stock", f"{quantity} wanted, {product['stock']} in stock"
    return None


class Seen:
    """The ids of orders that were decided: a page for each slot of event time, in it the ids by product."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pages: dict[int, dict[str, dict[str, int]]] = {}

    def ids(self, name: str, product: dict[str, Any], at: int) -> dict[str, int]:
        """Of a product, in the slot of this time."""
        slot = at // SLOT
        page = self._pages.get(slot)
        if page is None:
            page = self._pages[slot] = self._state.setdefault(f"seen/{slot}", {})
        if name not in page:
            page[name] = {}
            product["slots"].append(slot)
        return page[name]

    def forget(self, products: dict[str, Any]) -> None:
        """The slots that ended before the horizon of their product: an order in them would be too late."""
        for name, product in products.items():
            first = (product["newest"] - HORIZON) // SLOT
            for slot in [each for each in product["slots"] if each < first]:
                product["slots"].remove(slot)
                page = self._state[f"seen/{slot}"]
                del page[name]
                if not page:
                    del self._state[f"seen/{slot}"]


# --- step 2: what users bought, in windows


def summarise(state: State, sales: list[Sale]) -> Iterator[Send]:
    """By user: each sale is added to its window, and each window that has changed is written once per micro-batch."""
    changed: dict[tuple[str, int], dict[str, Any]] = {}
    users: dict[str, dict[str, Any]] = {}
    for sale in sales:
        _, _, _, user, order_id, at, quantity, total = sale
        known = users.get(user)
        if known is None:
            known = users[user] = remembered(state, user)
        start = at - at % WINDOW
        watermark = known["newest"] - LATENESS
        if start + WINDOW <= watermark:
            yield late(sale, start, watermark)
            continue
        if at > known["newest"]:
            known["newest"] = at
            if (at - LATENESS) // WINDOW > watermark // WINDOW:  # windows end at multiples: one can only be over now
                close(known["windows"], at - LATENESS)
        window = known["windows"].setdefault(str(start), {"orders": 0, "units": 0, "total": 0, "highest": -1})
        window["orders"] += 1
        window["units"] += quantity
        window["total"] += total
        if total > window["highest"]:
            window["highest"], window["highest_order"] = total, order_id
        changed[user, start] = window
    for (user, start), window in changed.items():
        value = {"user": user, "window_start": start, "window_end": start + WINDOW, **window}
        yield Send("user_summaries", user, value)


def remembered(state: State, user: str) -> dict[str, Any]:
    """The user's newest order and open windows."""
    page = state.setdefault(f"users/{(zlib.crc32(user.encode()) >> 16) % USER_PAGES}", {})
    known: dict[str, Any] = page.setdefault(user, {"newest": 0, "windows": {}})
    return known


def close(windows: dict[str, Any], watermark: int) -> None:
    """Forget the windows that ended before the watermark. Two are open at most."""
    for start in [each for each in windows if int(each) + WINDOW <= watermark]:
        del windows[start]


def late(sale: Sale, start: int, watermark: int) -> Send:
    """It stays a validated order, but its window is closed."""
    value = {"order_id": sale.order_id, "user": sale.user, "at": sale.at, "quantity": sale.quantity}
    value |= {"total": sale.total, "window_start": start, "window_end": start + WINDOW, "watermark": watermark}
    return Send("late_orders", sale.user, value)


# --- what lands in a database


class ValidatedOrder(NamedTuple):
    order_id: str
    user: str
    product: str
    quantity: int
    at: Time
    price: int
    total: int
    stock_left: int


class UserSummary(NamedTuple):
    user: str
    window_start: Time
    window_end: Time
    orders: int
    units: int
    total: int
    highest: int
    highest_order: str


USER: Final = {"user": "user_id"}
"""Unquoted, `user` is who is connected to PostgreSQL."""

PIPELINE: Final = Pipeline(
    name="orders",
    inputs=[Input("orders", Order, partitions=3), Input("inventory", Update, partitions=2)],
    steps=[Step(reserve, by="product"), Step(summarise, by="user", takes=Sale)],
    outputs={"validated_orders": 3, "rejected_orders": 1, "user_summaries": 2, "late_orders": 1},
    lands=[
        # Ids are told apart by product and time only: two orders may well have the same.
        Lands("validated_orders", ValidatedOrder, key=["order_id", "product", "at"], columns=USER),
        # Each window is written once per micro-batch: no need to say which record is the last.
        Lands("user_summaries", UserSummary, key=["user", "window_start"], mode="upsert", columns=USER),
    ],
)


def state(pages: Iterable[Page]) -> Mapping[str, Any]:
    """What was found in the state store, as the documentation tells it: all that is known of each product and user."""
    found: dict[str, Any] = {}
    for _, page, content in pages:
        for name, known in content.items():
            if page.startswith("users/"):
                found[f"user {name}"] = known
                continue
            product = found.setdefault(f"product {name}", {"seen": {}})
            if page == "products":
                product |= {each: known[each] for each in ("seq", "stock", "price", "newest")}
            else:
                start = int(page.removeprefix("seen/")) * SLOT
                product["seen"][str(start)] = sorted(known)
    return found
