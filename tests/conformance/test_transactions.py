"""Transactions with every client: the scenarios, and what only one of them does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onceflow.errors import ErrorCode
from tests.conformance.scenarios import values
from tests.conformance.transaction_scenarios import StartProducer, TransactionScenarios, committed
from tests.support.clients import Refused, refused
from tests.support.clients.coordinated import CoordinatedClient


class TestConfluent(TransactionScenarios):
    @pytest.fixture
    def client(self, confluent: CoordinatedClient) -> CoordinatedClient:
        return confluent


class TestAiokafka(TransactionScenarios):
    @pytest.fixture
    def client(self, aiokafka: CoordinatedClient) -> CoordinatedClient:
        return aiokafka


class TestKafkaPython(TransactionScenarios):
    @pytest.fixture
    def client(self, kafka_python: CoordinatedClient) -> CoordinatedClient:
        return kafka_python

    def test_a_timeout_above_the_limit_is_refused(self, start_producer: StartProducer) -> None:
        """It tells the code in words only."""
        with pytest.raises(Refused, match=r"\[Error 50\] InvalidTransactionTimeoutError"):
            start_producer(timeout_ms=900_001)


class TestJava(TransactionScenarios):
    # In KIP-890 an epoch one below the current one means a retry, and what was aborted cannot be committed.
    too_late = ErrorCode.INVALID_TXN_STATE

    @pytest.fixture
    def client(self, java: CoordinatedClient) -> CoordinatedClient:
        return java

    def test_a_timeout_above_the_limit_is_refused(self, start_producer: StartProducer) -> None:
        """It tells the code in words only."""
        with pytest.raises(Refused, match="The transaction timeout is larger than the maximum value allowed"):
            start_producer(timeout_ms=900_001)

    def test_an_older_instance_cannot_write_any_more(
        self, client: CoordinatedClient, start_producer: StartProducer, topic: str, new_name: Callable[[], str]
    ) -> None:
        """In KIP-890 nobody asks the coordinator before writing: the partition refuses, the abort is told why."""
        name = new_name()
        older = start_producer(name)
        older.begin()
        older.send(topic, values("in time"))
        older.commit()
        start_producer(name)
        older.begin()
        with refused(ErrorCode.INVALID_PRODUCER_EPOCH):
            older.send(topic, values("too late"))
        with refused(ErrorCode.PRODUCER_FENCED):
            older.abort()
        assert committed(client, topic, 1) == ["in time"]
        assert client.latest(topic) == 2
