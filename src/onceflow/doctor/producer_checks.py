"""Checks of producers' settings.

Defaults are not the same: Java's producer is idempotent unless something else contradicts, and then silently not;
librdkafka's is not, unless it has a transactional id. Where a file does not tell whose client it is for, a default that
would be wrong for either is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from onceflow.doctor.facts import UNSEEN, Case, ClientFacts
from onceflow.doctor.findings import Finding, fault, note, warning
from onceflow.doctor.registry import producer_check

__all__ = ["IDENTITY_WHY", "looks_random", "timeout_findings"]

ALL: Final = ("all", "-1")
IN_FLIGHT: Final = ("max.in.flight.requests.per.connection", "max.in.flight")
RETRIES: Final = ("retries", "message.send.max.retries")
ACKS: Final = ("acks", "request.required.acks")
DELIVERY: Final = ("delivery.timeout.ms", "message.timeout.ms")

TIMEOUT_MS_DEFAULT: Final = 60_000
REQUEST_MS_DEFAULT: Final = 30_000
LINGER_MS_DEFAULT: Final = 5  # of Java, since 4.0
KAFKA_MAX_TIMEOUT_MS: Final = 900_000
SHORT_MS: Final = 10_000

IDENTITY_WHY: Final = (
    "The id tells instances apart: a new instance with the same id takes over from the old one, and another one's "
    "id fences it."
)
_RANDOM: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\$\{?\(?(random|uuid|timestamp|date)|\{\{?\s*(random|uuid)|(^|[-_.])\d{13}$",
    re.IGNORECASE,
)


def looks_random(name: str) -> bool:
    """A UUID, a placeholder for one, or a time in milliseconds."""
    return _RANDOM.search(name) is not None


@producer_check(
    "producer.idempotence",
    "enable.idempotence",
    why="Without it, a batch that is sent again after a lost answer is stored twice.",
)
def idempotence(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = (client.get("enable.idempotence") or "").lower()
    if value == "false":
        yield fault("enable.idempotence=false", "enable.idempotence=true")
    elif not value and client.may_be_librdkafka and client.get("transactional.id") is None:
        whose = "librdkafka's default" if client.flavor == "librdkafka" else "the default of librdkafka, not of Java"
        yield fault(f"not set: false is {whose}", "enable.idempotence=true")


@producer_check(
    "producer.acks",
    "acks",
    why="A write that only the leader has is lost with it; and fewer than all turn idempotence off.",
)
def acks(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.get(*ACKS)
    if value is not None and value.lower() not in (*ALL, UNSEEN):
        yield fault(f"acks={value}", "acks=all")


@producer_check(
    "producer.in-flight",
    "max.in.flight.requests.per.connection",
    why="Brokers remember five batches of a producer; with more on their way, repetitions cannot be told.",
)
def in_flight(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.number(*IN_FLIGHT)
    if value is not None and value > 5:
        yield fault(f"max.in.flight.requests.per.connection={value}", "max.in.flight.requests.per.connection=5")


@producer_check(
    "producer.retries",
    "retries",
    why="A producer that gives up after the first lost answer does not know whether its batch was stored.",
)
def retries(client: ClientFacts, case: Case) -> Iterator[Finding]:
    if client.number(*RETRIES) == 0:
        yield fault("retries=0", "retries=2147483647 (the default): delivery.timeout.ms is the limit that counts")


@producer_check("producer.transactional-id", "transactional.id", why=IDENTITY_WHY)
def transactional_id(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.get("transactional.id")
    if not value:
        yield warning(
            "not set: each batch is stored once, but a process that is restarted writes again what it has written",
            "transactional.id=NAME, the same over restarts and another one for each instance",
        )
    elif looks_random(value):
        yield warning(
            f"transactional.id={value} looks new at every start: nobody fences the old instance, and what it left open "
            "holds readers back until its timeout",
            "a name that stays, such as NAME-0, NAME-1, ... for the instances",
        )


@producer_check("producer.in-use", "Nobody else uses the transactional.id", why=IDENTITY_WHY, needs=("transactions",))
def in_use(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.get("transactional.id")
    for each in case.cluster.transactions if case.cluster is not None else ():
        if each.transactional_id == value and each.is_unfinished:
            yield note(
                f"{value} has a transaction open right now, with epoch {each.producer_epoch}",
                "if that is not this very instance, give each its own: the next one to start fences the other",
            )


@producer_check(
    "producer.transaction-timeout",
    "transaction.timeout.ms",
    why="A transaction that takes longer is aborted; one whose producer died holds readers back for so long.",
)
def transaction_timeout(client: ClientFacts, case: Case) -> Iterator[Finding]:
    value = client.number("transaction.timeout.ms")
    if client.get("transactional.id") is not None or value is not None:
        yield from timeout_findings("transaction.timeout.ms", value or TIMEOUT_MS_DEFAULT, case)


def timeout_findings(name: str, value: int, case: Case) -> Iterator[Finding]:
    """A transaction's timeout against the broker's maximum, and against how long a transaction takes."""
    known = case.cluster.number("transaction.max.timeout.ms") if case.cluster is not None else None
    longest = KAFKA_MAX_TIMEOUT_MS if known is None else known
    if value > longest and known is not None:
        yield fault(f"{name}={value}, and the brokers' transaction.max.timeout.ms is {longest}: it is refused",
                    f"{name}={longest}, or a larger maximum on the brokers")  # fmt: skip
    elif value > longest:
        yield warning(f"{name}={value}, and brokers allow {longest} by default",
                      "give --bootstrap to compare it with yours")  # fmt: skip
    if case.processing_ms is not None and value <= case.processing_ms:
        yield fault(f"{name}={value}, and a transaction takes up to {case.processing_ms} ms",
                    f"{name}={min(longest, 2 * case.processing_ms)}, or smaller transactions")  # fmt: skip
    elif value < SHORT_MS:
        yield warning(f"{name}={value}: a pause of the process or of a broker is enough to lose it", f"{name}=60000")


@producer_check(
    "producer.delivery-timeout",
    "delivery.timeout.ms",
    why="A batch that is given up while the transaction goes on makes it fail; one tried for longer is tried in vain.",
)
def delivery_timeout(client: ClientFacts, case: Case) -> Iterator[Finding]:
    delivery = client.number(*DELIVERY)
    if delivery is None:
        return
    transaction = client.number("transaction.timeout.ms") or TIMEOUT_MS_DEFAULT
    if client.get("transactional.id") is not None and delivery > transaction:
        found = f"delivery.timeout.ms={delivery} is more than transaction.timeout.ms={transaction}"
        told = fault if client.flavor == "librdkafka" else note  # librdkafka does not start then
        yield told(found, f"delivery.timeout.ms={transaction}, or leave it out")
    request = client.number("request.timeout.ms") or REQUEST_MS_DEFAULT
    linger = client.number("linger.ms") or LINGER_MS_DEFAULT
    if client.flavor == "java" and delivery < request + linger:
        yield fault(f"delivery.timeout.ms={delivery} is less than linger.ms + request.timeout.ms: it does not start",
                    f"delivery.timeout.ms={request + linger} or more")  # fmt: skip
