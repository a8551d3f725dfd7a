"""Source and sink at an Apache Kafka that asks who comes: TLS, logins, and a sentence for every right that is missing.

`RIGHTS` is what docs/spark.md tells administrators to allow. Together they are enough, and each of them is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import onceflow.spark
from onceflow.spark.progress import PROGRESS_TOPIC
from tests.spark.streams import Streams
from tests.support.brokers import started
from tests.support.secured_kafka import USERS, SecuredKafka
from tests.support.waiting import eventually

pytestmark = pytest.mark.faults  # an Apache Kafka of its own; of every day are the tests of the client (tests/secured)

USER = "alice"


class Right(NamedTuple):
    resource: str
    name: str
    """{source}, {target} and {app} stand for the names of a test."""
    operation: str


READ_SOURCE = Right("topic", "{source}", "read")
WRITE_TARGET = Right("topic", "{target}", "write")
WRITE_ID = Right("transactional_id", "{app}", "write")
READ_GROUP = Right("group", "{app}", "read")
READ_PROGRESS = Right("topic", PROGRESS_TOPIC, "read")
WRITE_PROGRESS = Right("topic", PROGRESS_TOPIC, "write")
CREATE_PROGRESS = Right("topic", PROGRESS_TOPIC, "create")
"""Only to have the topic created by the sink."""
RIGHTS = (READ_SOURCE, WRITE_TARGET, WRITE_ID, READ_GROUP, READ_PROGRESS, WRITE_PROGRESS)
"""All that an exactly-once copy needs. DESCRIBE comes with READ and with WRITE."""

NOTHING, DESCRIBE = "nothing", "describe"
SAID = {
    (READ_SOURCE, NOTHING): "asking for topic '{source}' failed: topic authorization failed",
    (READ_SOURCE, DESCRIBE): "reading {source}-0 at offset 0 failed: topic authorization failed",
    (WRITE_TARGET, NOTHING): "the principal needs WRITE on '{target}'. Nothing was written",
    (WRITE_TARGET, DESCRIBE): "the principal needs WRITE on '{target}'. Nothing was written",
    (WRITE_ID, NOTHING): "the principal needs WRITE on the transactional id '{app}', which is the app id",
    (WRITE_ID, DESCRIBE): "the principal needs WRITE on the transactional id '{app}', which is the app id",
    (READ_GROUP, NOTHING): "the principal needs READ on the consumer group '{app}', which is the app id",
    (READ_GROUP, DESCRIBE): "the principal needs READ on the consumer group '{app}', which is the app id",
    (READ_PROGRESS, NOTHING): f"reading {PROGRESS_TOPIC}-0 at offset 0 failed: topic authorization failed",
    (WRITE_PROGRESS, NOTHING): f"the principal needs WRITE on '{PROGRESS_TOPIC}'. Nothing was written",
}
"""What the query says where a right is missing and nothing, or only DESCRIBE, is there instead."""


class Secured(Streams):
    """The test itself comes as an administrator; the query logs in as USER over SASL_SSL."""

    def __init__(self, kafka: SecuredKafka, spark: SparkSession, name: str, folder: Path) -> None:
        super().__init__(spark, kafka.bootstraps["PLAINTEXT"], name, folder)
        self.kafka = kafka
        self.address = kafka.bootstraps["SASL_SSL"]
        self.login: Mapping[str, str] = kafka.client("SASL_SSL", USER, "SCRAM-SHA-512")
        self.names = {"source": self.source, "target": self.target, "app": self.app_id}

    def allow(self, *rights: Right) -> None:
        """These rights and no others."""
        self.kafka.disallow(USER)
        wanted = {each._replace(name=each.name.format(**self.names)) for each in rights}
        for each in wanted:
            self.kafka.allow(USER, *each)
        eventually(lambda: _rights_of(self.kafka, USER) == wanted, "the broker has seen what is allowed")

    def copy(self, **options: str) -> None:
        sink = self.sink(bootstrap_servers=self.address, kafka=self.login, retries=0)
        login = {f"kafka.{name}": value for name, value in self.login.items()}
        self.run(sink, **{"kafka.bootstrap.servers": self.address, **login, **options})

    def refusal(self) -> str:
        """The sentence that the query ends with."""
        with pytest.raises(StreamingQueryException) as stopped:
            self.copy()
        return str(re.findall(r"^onceflow\.\S+: (.*)$", str(stopped.value), re.MULTILINE)[-1])

    def write(self, **settings: Any) -> None:
        rows = self.spark.range(3).selectExpr("cast(id as string) value")
        onceflow.spark.write(rows, bootstrap_servers=self.address, topic=self.target, kafka=self.login, **settings)


@pytest.fixture(scope="module")
def kafka() -> Iterator[SecuredKafka]:
    with ExitStack() as stack:
        yield started(lambda: stack.enter_context(SecuredKafka()))


@pytest.fixture
def secured(kafka: SecuredKafka, spark: SparkSession, new_name: Callable[[], str], tmp_path: Path) -> Secured:
    return Secured(kafka, spark, new_name(), tmp_path)


@pytest.fixture(scope="module")
def progress_of_others(kafka: SecuredKafka, spark: SparkSession) -> None:
    """The progress topic is there, and has a record."""
    kafka.admin().create_topics([_new_topic("of-others")])["of-others"].result(timeout=15)
    rows = spark.range(1).selectExpr("cast(id as string) value")
    bootstrap = kafka.bootstraps["PLAINTEXT"]
    onceflow.spark.write(rows, bootstrap_servers=bootstrap, topic="of-others", app_id="others", once="today")


def test_rights_are_enough_once_the_progress_topic_is_created(secured: Secured) -> None:
    _delete_topic(secured.kafka, PROGRESS_TOPIC)
    secured.send(range(10))
    secured.allow(*(right for right in RIGHTS if right.name != PROGRESS_TOPIC))
    assert f"asking for topic '{PROGRESS_TOPIC}' failed: topic authorization failed" in secured.refusal()
    secured.allow(*RIGHTS)
    assert "or give the principal CREATE on it" in secured.refusal()
    assert secured.output() == []
    secured.allow(*RIGHTS, CREATE_PROGRESS)
    secured.copy()
    secured.allow(*RIGHTS)
    secured.checkpoint = secured.checkpoint.with_name("after a loss")
    secured.send(range(10, 20))
    secured.copy(startingOffsets="committed", **{"kafka.group.id": secured.app_id})
    eventually(lambda: len(secured.output()) >= 20, "all is visible")
    assert secured.values() == sorted(map(str, range(20)))
    eventually(lambda: secured.group_offsets() == {0: 20, 1: 0}, "the group has the offsets")


@pytest.mark.usefixtures("progress_of_others")
@pytest.mark.faults
@pytest.mark.parametrize(("missing", "instead"), SAID, ids=lambda part: "-".join(part) if part in RIGHTS else part)
def test_missing_right_is_named_and_nothing_is_visible(secured: Secured, missing: Right, instead: str) -> None:
    secured.send(range(10))
    others = [right for right in RIGHTS if right != missing]
    secured.allow(*others, *([missing._replace(operation=DESCRIBE)] if instead == DESCRIBE else []))
    assert SAID[missing, instead].format(**secured.names) in secured.refusal()
    assert secured.output() == []
    assert secured.group_offsets() == {}


def test_each_right_is_left_out_once() -> None:
    assert {missing for missing, _ in SAID} == set(RIGHTS)


def test_login_and_trust_as_java_writes_them(secured: Secured) -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    secured.login = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{module} required username="{USER}" password="{USERS[USER]}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": secured.kafka.ca_file,
    }
    secured.allow(*RIGHTS, CREATE_PROGRESS)
    secured.send(range(10))
    secured.copy()
    eventually(lambda: secured.values() == sorted(map(str, range(10))), "all is visible")


def test_batch_write_without_a_name_needs_no_group_and_no_progress(secured: Secured) -> None:
    secured.allow(WRITE_TARGET)
    secured.write(guarantee="at_least_once")
    secured.kafka.allow(USER, "transactional_id", "onceflow-write-", "write", prefixed=True)
    eventually(lambda: len(_rights_of(secured.kafka, USER)) == 2, "the broker has seen what is allowed")
    secured.write()
    eventually(lambda: len(secured.output()) == 6, "both are visible")


def _rights_of(kafka: SecuredKafka, user: str) -> set[Right]:
    """As the broker sees them, which is a moment after they were changed."""
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    anything = (ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None)
    found: Any = kafka.admin().describe_acls(AclBindingFilter(*anything, AclOperation.ANY, AclPermissionType.ANY))
    return {
        Right(each.restype.name.lower(), each.name, each.operation.name.lower()) for each in found.result(timeout=15)
    }


def _new_topic(name: str) -> Any:
    from confluent_kafka.admin import NewTopic

    return NewTopic(name, 1, 1)


def _delete_topic(kafka: SecuredKafka, name: str) -> None:
    admin = kafka.admin()
    if name in admin.list_topics(timeout=15).topics:
        for future in admin.delete_topics([name]).values():
            future.result(timeout=15)
    eventually(lambda: name not in admin.list_topics(timeout=15).topics, f"{name} is gone")
