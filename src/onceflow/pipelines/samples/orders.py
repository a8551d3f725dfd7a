"""Orders and inventory updates of a shop on a busy day, from a seed: most are good, and every kind of bad one is there.

What is bad comes by plan: each kind once or more in every thousand messages, where the seed decides. `labelled` says
of every message what it is; docs/pipelines/orders.md says where each kind ends.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from onceflow.pipelines.reference import Message

__all__ = ["ORDER", "UPDATE", "generate", "kinds", "labelled"]

BEGIN: Final = 1_767_603_600_000
"""2026-01-05, 09:00 UTC."""
MINUTE: Final = 60_000
STEP_MS_MAX: Final = 50
PARTITIONS: Final = {"orders": 3, "inventory": 2}
PRODUCTS: Final = 200
USERS: Final = 1_000
NEVER_IN_STOCK: Final = "product-unknown"
BLOCK: Final = 1_000
UPDATES_PER_BLOCK: Final = 15
QUANTITIES: Final = (1, 1, 1, 1, 2, 2, 2, 3, 4, 8)
ORDER: Final = "order"
UPDATE: Final = "update"


class Sent(NamedTuple):
    """An order that was sent."""

    order_id: str
    user: str
    product: str
    quantity: int
    at: int


def generate(seed: int, records: int) -> Iterator[Message]:
    for _, message in labelled(seed, records):
        yield message


def labelled(seed: int, records: int) -> Iterator[tuple[str, Message]]:
    """Each with its kind: `ORDER`, `UPDATE`, or a key of `kinds()`."""
    shop = _Shop(seed, products=max(1, min(PRODUCTS, records // 100)))
    for number in range(records):
        kind = shop.next_kind(number)
        yield kind, shop.message(kind)


def kinds() -> list[str]:
    """All that is not plainly an order or an update."""
    return [*_ORDERS, *_UPDATES]


class _Shop:
    def __init__(self, seed: int, products: int) -> None:
        self.chance = random.Random(seed)
        self.now = BEGIN
        self.products = [f"product-{number}" for number in range(products)]
        self.users = [f"user-{number}" for number in range(USERS)]
        # A few products are wanted most, a few users buy most.
        self._wanted = list(accumulate(1 / (number + 10) for number in range(products)))
        self._buying = list(accumulate(1 / (number + 50) for number in range(USERS)))
        self.prices = {name: self.chance.randrange(99, 50_000) for name in self.products}
        self.seqs = dict.fromkeys(self.products, 0)
        self.recent: deque[Sent] = deque(maxlen=50)
        self.old: list[Sent] = []
        self._count = 0
        self._plan: dict[int, str] = {}

    def next_kind(self, number: int) -> str:
        """First the opening stock, then blocks with all kinds in each."""
        if number < len(self.products):
            return OPENING
        place = (number - len(self.products)) % BLOCK
        if place == 0:
            planned = [*_ORDERS, *_ORDERS, *_UPDATES, *[UPDATE] * UPDATES_PER_BLOCK]
            # Not among the first: some kinds need others before them.
            places = self.chance.sample(range(100, BLOCK), len(planned))
            self._plan = dict(zip(places, planned, strict=True))
        return self._plan.get(place, ORDER)

    def message(self, kind: str) -> Message:
        self.now += self.chance.randrange(STEP_MS_MAX + 1)
        if kind == ORDER:
            sent = self.order()
            self._remember(sent)
            return self.of_order(sent, _json(sent))
        if kind in _ORDERS:
            sent, value = _ORDERS[kind](self)
            return self.of_order(sent, value)
        update = self.opening() if kind == OPENING else self.update()
        if kind in (OPENING, UPDATE, TAKES_ALL):
            self.seqs[update["product"]] = update["seq"]
        spoil = _UPDATES.get(kind)
        return self.of_update(update, spoil(self, update) if spoil else orjson.dumps(update))

    def order(self) -> Sent:
        chance = self.chance
        self._count += 1
        return Sent(
            f"o-{self._count}",
            chance.choices(self.users, cum_weights=self._buying)[0],
            chance.choices(self.products, cum_weights=self._wanted)[0],
            chance.choice(QUANTITIES),
            self.now - int(chance.expovariate(1 / 800)),
        )

    def order_like(self, sent: Sent, earlier_ms: int) -> Sent:
        """A new one of the same user and product, at another time."""
        return self.order()._replace(user=sent.user, product=sent.product, quantity=1, at=self.now - earlier_ms)

    def _remember(self, sent: Sent) -> None:
        self.recent.append(sent)
        if self._count % 10 == 0:
            self.old.append(sent)

    def opening(self) -> dict[str, Any]:
        name = next(name for name, seq in self.seqs.items() if seq == 0)
        return {"product": name, "seq": 1, "change": self.chance.randrange(20, 400), "price": self.prices[name]}

    def update(self) -> dict[str, Any]:
        """Mostly a delivery, sometimes a loss, now and then another price."""
        chance = self.chance
        name = chance.choices(self.products, cum_weights=self._wanted)[0]
        if chance.random() < 0.1:
            self.prices[name] = max(1, self.prices[name] + chance.randrange(-50, 51))
        change = -chance.randrange(1, 30) if chance.random() < 0.1 else chance.randrange(150, 650)
        return {"product": name, "seq": self.seqs[name] + 1, "change": change, "price": self.prices[name]}

    def of_order(self, sent: Sent, value: bytes | None) -> Message:
        return self._message("orders", sent.user.encode(), value)

    def of_update(self, update: dict[str, Any], value: bytes | None) -> Message:
        return self._message("inventory", update["product"].encode(), value)

    def _message(self, topic: str, key: bytes, value: bytes | None) -> Message:
        return Message(topic, crc32(key) % PARTITIONS[topic], key, value, self.now)


def _json(sent: Sent) -> bytes:
    """Nothing in it needs to be escaped."""
    order_id, user, product, quantity, at = sent
    return (
        f'{{"order_id":"{order_id}","user":"{user}","product":"{product}","quantity":{quantity},"at":{at}}}'
    ).encode()


# --- bad orders

Order = tuple[Sent, bytes | None]


def _spoiled(change: Callable[[random.Random, bytes], bytes | None]) -> Callable[[_Shop], Order]:
    """An order whose bytes are changed."""

    def make(shop: _Shop) -> Order:
        sent = shop.order()
        return sent, change(shop.chance, _json(sent))

    return make


def _with(**options: list[Any]) -> Callable[[_Shop], Order]:
    """An order in which a field, any of these, has a value that is none for it, any of these."""

    def make(shop: _Shop) -> Order:
        sent = shop.order()
        name = shop.chance.choice(sorted(options))
        return sent, orjson.dumps({**sent._asdict(), name: shop.chance.choice(options[name])})

    return make


def _without_a_field(shop: _Shop) -> Order:
    sent = shop.order()
    value = sent._asdict()
    del value[shop.chance.choice(sorted(value))]
    return sent, orjson.dumps(value)


def _number_out_of_range(shop: _Shop) -> Order:
    sent = shop.order()
    number = shop.chance.choice([str(2**63), str(-(2**63)), str(2**64), "9" * 40])
    return sent, _json(sent).replace(f'"at":{sent.at}'.encode(), f'"at":{number}'.encode())


def _again(sent: Sent) -> Order:
    return sent, _json(sent)


def _duplicate(shop: _Shop) -> Order:
    return _again(shop.chance.choice(shop.recent))


def _old_duplicate(shop: _Shop) -> Order:
    """Of any time since the beginning, the first half rather."""
    return _again(shop.old[shop.chance.randrange(-(-len(shop.old) // 2))])


def _at(first_minute: int, last_minute: int) -> Callable[[_Shop], Order]:
    """An order of a user who was here just now, so many minutes ago."""

    def make(shop: _Shop) -> Order:
        earlier = shop.chance.randrange(first_minute * MINUTE, last_minute * MINUTE)
        return _again(shop.order_like(shop.chance.choice(shop.recent), earlier))

    return make


_ORDERS: Final[dict[str, Callable[[_Shop], Order]]] = {
    "malformed JSON": _spoiled(lambda chance, value: value[: chance.randrange(len(value))]),
    "not UTF-8": _spoiled(lambda chance, value: value.replace(b"product-", b"caf\xe9-")),
    "no value": _spoiled(lambda chance, value: None),
    "not an object": _spoiled(lambda chance, value: chance.choice([b"[" + value + b"]", b"17", b'"order"', b"null"])),
    "not a number": _spoiled(lambda chance, value: value[:-1] + chance.choice([b',"x":NaN}', b',"x":1e999}'])),
    "half a character": _spoiled(lambda chance, value: value.replace(b"product-", b"\\ud83d-")),
    "missing field": _without_a_field,
    "wrong type": _with(
        order_id=[17, ["o-1"]], user=[{"name": "user-1"}, 5], quantity=["3", 3.0, True], at=["now", 1767603600000.5]
    ),
    "null field": _with(order_id=[None], user=[None], product=[None], quantity=[None], at=[None]),
    "number out of range": _number_out_of_range,
    "extra field": _spoiled(lambda chance, value: value[:-1] + b',"coupon":"NEW-YEAR","tags":[1,{"a":null}]}'),
    "unusual text": _with(user=["Zoë", "李雷", 'a "b"\\c\n', "", "🛒"]),
    "unknown product": _with(product=[NEVER_IN_STOCK]),
    "negative quantity": _with(quantity=[0, -1, -2_000, 1 - 2**63]),
    "huge quantity": _with(quantity=[10_001, 2**63 - 1]),
    "from the future": _at(-2_000, -30),
    "duplicate": _duplicate,
    "old duplicate": _old_duplicate,
    "a little late": _at(1, 9),
    "late": _at(25, 55),
    "too late": _at(65, 600),
}


# --- bad updates of the inventory

OPENING: Final = "opening stock"
TAKES_ALL: Final = "update that takes more than there is"
Spoil = Callable[[_Shop, dict[str, Any]], bytes | None]


def _set(name: str, *values: Any) -> Spoil:
    def make(shop: _Shop, update: dict[str, Any]) -> bytes:
        return orjson.dumps({**update, name: shop.chance.choice(values)})

    return make


def _repeated(shop: _Shop, update: dict[str, Any]) -> bytes:
    """The number of one that was sent before, the last one or an older one."""
    return orjson.dumps({**update, "seq": shop.chance.randrange(update["seq"])})


_UPDATES: Final[dict[str, Spoil]] = {
    "update that is not newer": _repeated,
    "update with an impossible price": _set("price", -1, 100_000_001),
    "update with an impossible change": _set("change", 10**12, -(10**12)),
    TAKES_ALL: _set("change", -1_000_000),
    "malformed update": lambda shop, update: orjson.dumps(update)[:-1],
    "update of the wrong type": _set("price", "12.50", 12.5, None),
    "update without a value": lambda shop, update: None,
}
