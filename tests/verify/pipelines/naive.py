"""What many people write first: read, write, and commit now and then. It loses nothing and doubles a lot."""

from __future__ import annotations

import os
import time

from confluent_kafka import Consumer, Producer

COMMIT_EVERY_S = 1.0

bootstrap = {"bootstrap.servers": os.environ["ONCEFLOW_BOOTSTRAP"], "log_level": 0, "error_cb": lambda _: None}
consumer = Consumer(
    {
        **bootstrap,
        "group.id": os.environ["ONCEFLOW_INPUT"],
        "session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
)
producer = Producer({**bootstrap, "enable.idempotence": True})
consumer.subscribe([os.environ["ONCEFLOW_INPUT"]])
committed_at = time.monotonic()
while True:
    for message in consumer.consume(100, timeout=0.1):
        if message.error() is None:
            producer.produce(os.environ["ONCEFLOW_OUTPUT"], message.value())
    producer.flush()
    if time.monotonic() - committed_at > COMMIT_EVERY_S:
        consumer.commit(asynchronous=True)
        committed_at = time.monotonic()
