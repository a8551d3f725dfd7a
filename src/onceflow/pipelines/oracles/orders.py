"""What the orders pipeline must write, recomputed from docs/pipelines/orders.md in the plainest way.

No shards and no pages: a dictionary of products, a dictionary of users, and the records one after the other.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from onceflow.pipelines.reference import Expected, Raw

__all__ = ["Oracle"]

MINUTES: Final = 60 * 1000
FIELDS: Final[Mapping[str, Mapping[str, type]]] = {
    "orders": {"order_id": str, "user": str, "product": str, "quantity": int, "at": int},
    "inventory": {"product": str, "seq": int, "change": int, "price": int},
}
KIND: Final = {str: "a text", int: "an integer"}


@dataclass
class Product:
    seq: int = 0
    stock: int = 0
    price: int = 0
    newest: int = 0
    decided: set[tuple[str, int]] = field(default_factory=set)
    """Orders, by their id and the ten minutes that they belong to."""


@dataclass
class Window:
    totals: list[tuple[int, str]] = field(default_factory=list)
    units: int = 0

    def summary(self) -> dict[str, Any]:
        highest = max(total for total, _ in self.totals)
        return {
            "orders": len(self.totals),
            "units": self.units,
            "total": sum(total for total, _ in self.totals),
            "highest": highest,
            "highest_order": next(order_id for total, order_id in self.totals if total == highest),
        }


@dataclass
class User:
    newest: int = 0
    windows: dict[int, Window] = field(default_factory=dict)


class Oracle:
    def __init__(self) -> None:
        self._products: dict[str, Product] = {}
        self._users: dict[str, User] = {}
        self._written: list[Expected] = []
        self._changed: dict[tuple[str, int], Window] = {}

    def batch(self, records: Sequence[Raw]) -> list[Expected]:
        self._written, self._changed = [], {}
        for record in records:
            try:
                value = _parsed(record)
            except _Unfit as problem:
                self._written.append(_dead_letter(record, str(problem), _original(record)))
                continue
            if record.topic == "inventory":
                self._update(record, value)
            else:
                self._order(record, value)
        for (user, start), window in self._changed.items():
            value = {"user": user, "window_start": start, "window_end": start + 10 * MINUTES, **window.summary()}
            self._written.append(Expected("user_summaries", user, value))
        return self._written

    def state(self) -> Mapping[str, Any]:
        products = {f"product {name}": _product_state(product) for name, product in self._products.items()}
        users = {f"user {name}": _user_state(user) for name, user in self._users.items()}
        return products | users

    # --- the inventory

    def _update(self, record: Raw, update: dict[str, Any]) -> None:
        product = self._products.get(update["product"], Product())
        if problem := _problem_of_update(update, product):
            self._written.append(_dead_letter(record, problem, {"value": json.dumps(update, ensure_ascii=False)}))
            return
        product.seq = update["seq"]
        product.price = update["price"]
        product.stock += update["change"]
        if product.stock < 0:
            product.stock = 0
        self._products[update["product"]] = product

    # --- orders

    def _order(self, record: Raw, order: dict[str, Any]) -> None:
        product = self._products.get(order["product"])
        if product is None:
            self._reject(order, "unknown_product", f"there is no product {order['product']}")
        elif problem := _problem_of_order(order, record.timestamp, product):
            self._reject(order, *problem)
        else:
            self._accept(order, product)

    def _reject(self, order: dict[str, Any], code: str, sentence: str) -> None:
        value = {**order, "reason": code, "explanation": sentence}
        self._written.append(Expected("rejected_orders", order["user"], value))

    def _accept(self, order: dict[str, Any], product: Product) -> None:
        product.stock -= order["quantity"]
        total = order["quantity"] * product.price
        value = {**order, "price": product.price, "total": total, "stock_left": product.stock}
        self._written.append(Expected("validated_orders", order["user"], value))
        self._sum_up(order, total)

    def _sum_up(self, order: dict[str, Any], total: int) -> None:
        """Add a validated order to its user's window."""
        user = self._users.setdefault(order["user"], User())
        start, end = _ten_minutes_of(order["at"])
        watermark = user.newest - 10 * MINUTES
        if end <= watermark:
            value = {name: order[name] for name in ("order_id", "user", "at", "quantity")}
            value |= {"total": total, "window_start": start, "window_end": end, "watermark": watermark}
            self._written.append(Expected("late_orders", order["user"], value))
            return
        user.newest = max(user.newest, order["at"])
        window = user.windows.setdefault(start, Window())
        window.totals.append((total, order["order_id"]))
        window.units += order["quantity"]
        self._changed[order["user"], start] = window
        watermark = user.newest - 10 * MINUTES
        user.windows = {begin: each for begin, each in user.windows.items() if begin + 10 * MINUTES > watermark}


def _problem_of_update(update: dict[str, Any], product: Product) -> str | None:
    if update["price"] < 0 or update["price"] > 100_000_000:
        return f"the price is not between 0 and 100000000: {update['price']}"
    if abs(update["change"]) > 1_000_000_000:
        return f"the change is not between -1000000000 and 1000000000: {update['change']}"
    if not update["seq"] > product.seq:
        return f"not newer than the last update of this product, {product.seq}: {update['seq']}"
    return None


def _problem_of_order(order: dict[str, Any], arrived: int, product: Product) -> tuple[str, str] | None:
    """Why it is not accepted. From the moment its id is looked at, it has been decided."""
    at, quantity = order["at"], order["quantity"]
    if at - arrived > 10 * MINUTES:
        return "from_the_future", f"{at - arrived} ms ahead of its arrival"
    if product.newest - at > 60 * MINUTES:
        return "too_late", f"{product.newest - at} ms behind the newest order of this product"
    identity = (order["order_id"], _ten_minutes_of(at)[0])
    if identity in product.decided:
        return "duplicate", f"order {order['order_id']} has been decided before"
    product.decided.add(identity)
    product.newest = max(product.newest, at)
    if quantity < 1 or quantity > 10_000:
        return "invalid_quantity", f"the quantity is not between 1 and 10000: {quantity}"
    if product.stock < quantity:
        return "out_of_stock", f"{quantity} wanted, {product.stock} in stock"
    return None


def _ten_minutes_of(at: int) -> tuple[int, int]:
    """From the full ten minutes before a time to the next ones."""
    start = at // (10 * MINUTES) * (10 * MINUTES)
    return start, start + 10 * MINUTES


# --- what is remembered


def _product_state(product: Product) -> dict[str, Any]:
    seen: dict[str, list[str]] = {}
    for order_id, start in product.decided:
        if start + 10 * MINUTES > product.newest - 60 * MINUTES:
            seen.setdefault(str(start), []).append(order_id)
    return {
        "seq": product.seq,
        "stock": product.stock,
        "price": product.price,
        "newest": product.newest,
        "seen": {start: sorted(ids) for start, ids in seen.items()},
    }


def _user_state(user: User) -> dict[str, Any]:
    return {"newest": user.newest, "windows": {str(start): each.summary() for start, each in user.windows.items()}}


# --- records that do not fit


class _Unfit(Exception):
    pass


def _parsed(record: Raw) -> dict[str, Any]:
    """The fields of the record's value. Raises `_Unfit`."""
    found = _from_json(record.value)
    if not isinstance(found, dict):
        raise _Unfit(f"not a JSON object: {_shown(found)}")
    for name, kind in FIELDS[record.topic].items():
        if name not in found:
            raise _Unfit(f"no field {name!r}")
        if type(found[name]) is not kind:
            raise _Unfit(f"{name!r} is not {KIND[kind]}: {_shown(found[name])}")
        if kind is int and abs(found[name]) >= 2**63:
            raise _Unfit(f"{name!r} is out of range: {found[name]}")
    return {name: found[name] for name in FIELDS[record.topic]}


def _from_json(raw: bytes | None) -> Any:
    """Stricter than the standard library: no NaN, no number beyond all others, no half of a character."""
    if raw is None:
        raise _Unfit("there is no value")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _Unfit("not UTF-8") from None
    try:
        found = json.loads(text, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError):
        raise _Unfit("not JSON") from None
    return found


def _integer(text: str) -> int | float:
    """Integers have 64 bits, with a sign or without; beyond that they are numbers like any other."""
    number = _finite(text)
    if abs(number) < 2**65 and -(2**63) <= int(text) < 2**64:
        return int(text)
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text[:60] + ("..." if len(text) > 60 else "")


def _original(record: Raw) -> dict[str, Any]:
    """Key and value as they were, in base64 what is no text."""
    shown: dict[str, Any] = {}
    for name, raw in {"key": record.key, "value": record.value}.items():
        if raw is None:
            shown[name] = None
            continue
        try:
            shown[name] = raw.decode("utf-8")
        except UnicodeDecodeError:
            shown[f"{name}_base64"] = base64.b64encode(raw).decode("ascii")
    return shown


def _dead_letter(record: Raw, reason: str, original: dict[str, Any]) -> Expected:
    origin = {name: getattr(record, name) for name in ("topic", "partition", "offset", "timestamp")}
    return Expected("orders_dead_letters", None, {"reason": reason, **origin, **original})
