"""The same with a transaction around it, and the offsets inside."""

from __future__ import annotations

import os
import sys

from confluent_kafka import Consumer, KafkaException, Producer

bootstrap = {"bootstrap.servers": os.environ["ONCEFLOW_BOOTSTRAP"], "log_level": 0, "error_cb": lambda _: None}
consumer = Consumer(
    {
        **bootstrap,
        "group.id": os.environ["ONCEFLOW_INPUT"],
        "session.timeout.ms": 6000,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
)
producer = Producer(
    {
        **bootstrap,
        "transactional.id": f"{os.environ['ONCEFLOW_OUTPUT']}-{os.environ['ONCEFLOW_INSTANCE']}",
        "transaction.timeout.ms": 10_000,
        "socket.timeout.ms": 6000,
    }
)
try:
    producer.init_transactions()
    consumer.subscribe([os.environ["ONCEFLOW_INPUT"]])
    while True:
        messages = [each for each in consumer.consume(100, timeout=0.1) if each.error() is None]
        if messages:
            producer.begin_transaction()
            for message in messages:
                producer.produce(os.environ["ONCEFLOW_OUTPUT"], message.value())
            positions = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()
except KafkaException as problem:
    sys.exit(str(problem))  # the next life starts from what was committed
