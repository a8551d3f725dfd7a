"""What every client must be able to do, written once.

`test_confluent.py` and its siblings subclass `ClientScenarios` and provide the fixture `client`. A client that cannot
do one thing sets that scenario to None and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import pytest

from onceflow.errors import ErrorCode
from tests.support.clients import CODECS, TIMEOUT_S, Client, Record, Refused, read, refused
from tests.support.raw import Wire
from tests.support.waiting import eventually

HOUR_MS = 3_600_000
WAIT_MS = 30_000
"""Of a fetch that is to be answered before, on a busy machine, too."""

TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""What a topic has when nobody said anything."""

NewTopic = Callable[..., str]


def values(*texts: str, partition: int = 0) -> list[Record]:
    return [Record(value=text.encode(), partition=partition) for text in texts]


def numbered(count: int, partition: int = 0) -> list[Record]:
    return [Record(value=b"%d" % number, partition=partition) for number in range(count)]


class ClientScenarios:
    codecs: tuple[str, ...] = CODECS

    @pytest.fixture
    def new_topic(self, client: Client, wire: Wire, new_name: Callable[[], str]) -> NewTopic:
        """Makes a topic and waits until it can be used."""

        def create(partitions: int = 1, config: Mapping[str, str] | None = None, name: str | None = None) -> str:
            name = name or new_name()
            client.create_topic(name, partitions, config)
            eventually(lambda: client.partition_count(name) == partitions, f"topic {name} has {partitions} partitions")
            wire.await_partitions(name, partitions)
            return name

        return create

    @pytest.fixture
    def topic(self, new_topic: NewTopic) -> str:
        return new_topic()

    # --- topics

    def test_a_new_topic_has_the_partitions_asked_for(self, client: Client, new_topic: NewTopic) -> None:
        assert client.partition_count(new_topic(partitions=3)) == 3

    def test_a_new_topic_without_a_partition_count_has_one(self, client: Client, new_name: Callable[[], str]) -> None:
        name = new_name()
        client.create_topic(name)
        eventually(lambda: client.partition_count(name) == 1, f"topic {name} has one partition")

    def test_a_topic_is_listed_until_it_is_deleted(self, client: Client, topic: str) -> None:
        assert topic in client.topics()
        client.delete_topic(topic)
        eventually(lambda: topic not in client.topics(), f"topic {topic} is gone")

    def test_a_topic_that_exists_cannot_be_created_again(self, client: Client, topic: str) -> None:
        with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
            client.create_topic(topic, 5)
        assert client.partition_count(topic) == 1

    @pytest.mark.parametrize(
        "name",
        ["with space", "with/slash", "ü", "x" * 250, ".", ".."],
        ids=["space", "slash", "umlaut", "long", "dot", "dots"],
    )
    def test_a_bad_topic_name_is_refused(self, client: Client, name: str) -> None:
        with refused(ErrorCode.INVALID_TOPIC_EXCEPTION):
            client.create_topic(name, 1)

    def test_a_topic_without_partitions_is_refused(self, client: Client, new_name: Callable[[], str]) -> None:
        with refused(ErrorCode.INVALID_PARTITIONS):
            client.create_topic(new_name(), 0)

    def test_more_replicas_than_nodes_are_refused(self, client: Client, new_name: Callable[[], str]) -> None:
        with refused(ErrorCode.INVALID_REPLICATION_FACTOR):
            client.create_topic(new_name(), 1, replication=3)

    @pytest.mark.parametrize(
        "setting",
        [
            ("retention.ms", "soon"),
            ("cleanup.policy", "shred"),
            ("segment.bytes", "-5"),
            ("compression.type", "rar"),
            ("message.timestamp.type", "Yesterday"),
            ("no.such.setting", "1"),
        ],
        ids=lambda setting: setting[0],
    )
    def test_a_bad_setting_is_refused(
        self, client: Client, new_name: Callable[[], str], setting: tuple[str, str]
    ) -> None:
        name = new_name()
        with refused(ErrorCode.INVALID_CONFIG):
            client.create_topic(name, 1, dict([setting]))
        assert name not in client.topics()

    def test_validating_a_topic_does_not_create_it(
        self, client: Client, topic: str, new_name: Callable[[], str]
    ) -> None:
        name = new_name()
        client.validate_topic(name, 1)
        assert name not in client.topics()
        with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
            client.validate_topic(topic, 1)

    def test_deleting_a_topic_that_does_not_exist_is_refused(self, client: Client, new_name: Callable[[], str]) -> None:
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            client.delete_topic(new_name())

    def test_a_topic_created_again_is_empty(self, client: Client, new_topic: NewTopic) -> None:
        name = new_topic(partitions=2)
        client.produce(name, values("old"))
        client.delete_topic(name)
        eventually(lambda: client.partition_count(name) == 0, f"topic {name} is gone")
        new_topic(name=name)
        assert client.latest(name) == 0
        assert client.produce(name, values("new")) == [0]
        assert [each.value for each in read(client, name, 1)] == [b"new"]

    def test_a_topic_created_again_has_a_new_id(self, client: Client, new_topic: NewTopic) -> None:
        name = new_topic()
        old = client.topic_id(name)
        client.delete_topic(name)
        eventually(lambda: client.partition_count(name) == 0, f"topic {name} is gone")
        new_topic(name=name)
        assert client.topic_id(name) != old

    def test_the_first_produce_creates_a_topic(self, client: Client, new_name: Callable[[], str]) -> None:
        name = new_name()
        assert client.produce(name, values("first")) == [0]
        assert client.partition_count(name) == 1
        assert [each.value for each in read(client, name, 1)] == [b"first"]

    def test_partitions_can_be_added(self, client: Client, wire: Wire, topic: str) -> None:
        client.produce(topic, values("kept"))
        client.create_partitions(topic, 3)
        eventually(lambda: client.partition_count(topic) == 3, f"topic {topic} has three partitions")
        wire.await_partitions(topic, 3)
        assert client.produce(topic, values("there", partition=2)) == [0]
        assert client.latest(topic) == 1

    @pytest.mark.parametrize("total", [1, 2], ids=["fewer", "as-many"])
    def test_partitions_can_only_be_added(self, client: Client, new_topic: NewTopic, total: int) -> None:
        topic = new_topic(partitions=2)
        with refused(ErrorCode.INVALID_PARTITIONS):
            client.create_partitions(topic, total)

    def test_partitions_of_an_unknown_topic_cannot_be_added(self, client: Client, new_name: Callable[[], str]) -> None:
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            client.create_partitions(new_name(), 2)

    # --- producing and reading

    @pytest.mark.parametrize("idempotence", [False, True], ids=["plain", "idempotent"])
    @pytest.mark.parametrize("codec", CODECS)
    def test_records_come_back_as_they_were_sent(
        self, client: Client, new_topic: NewTopic, codec: str, idempotence: bool
    ) -> None:
        if codec not in self.codecs:
            pytest.skip(f"this client has no library for {codec} installed")
        topic = new_topic(partitions=2)
        now = time.time_ns() // 1_000_000
        sent = [
            Record(
                key=b"key-%d" % number,
                value=b"value " * number,
                headers=(("number", b"%d" % number), ("twice", b"1"), ("twice", b"2")),
                timestamp_ms=now + number,
                partition=number % 2,
            )
            for number in range(100)
        ]
        offsets = client.produce(topic, sent, codec=codec, idempotence=idempotence)
        assert offsets == [number // 2 for number in range(100)]
        for partition in (0, 1):
            received = read(client, topic, 50, partition=partition)
            assert [each.offset for each in received] == list(range(50))
            assert [each.record for each in received] == sent[partition::2]

    def test_null_and_empty_are_different(self, client: Client, topic: str) -> None:
        now = time.time_ns() // 1_000_000
        sent = [
            Record(key=b"k", value=None, timestamp_ms=now),
            Record(key=b"k", value=b"", timestamp_ms=now),
            Record(key=None, value=b"v", timestamp_ms=now),
            Record(key=b"", value=b"v", timestamp_ms=now),
            Record(key=b"k", value=b"v", headers=(("empty", b""),), timestamp_ms=now),
        ]
        client.produce(topic, sent)
        assert [each.record for each in read(client, topic, len(sent))] == sent

    def test_codecs_can_follow_each_other_in_one_partition(self, client: Client, topic: str) -> None:
        for codec in self.codecs:
            client.produce(topic, values(codec), codec=codec)
        assert [each.value.decode() for each in read(client, topic, len(self.codecs))] == list(self.codecs)

    def test_a_record_without_a_timestamp_gets_the_time_of_sending(self, client: Client, topic: str) -> None:
        before = time.time_ns() // 1_000_000
        client.produce(topic, values("now"))
        [received] = read(client, topic, 1)
        assert before - 1000 <= received.record.timestamp_ms <= time.time_ns() // 1_000_000 + 1000
        assert not received.append_time

    def test_log_append_time_replaces_the_timestamp(self, client: Client, new_topic: NewTopic) -> None:
        topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
        before = time.time_ns() // 1_000_000
        client.produce(topic, [Record(value=b"old", timestamp_ms=before - HOUR_MS), *values("new")])
        for received in read(client, topic, 2):
            assert received.append_time
            assert before - 1000 <= received.record.timestamp_ms <= time.time_ns() // 1_000_000 + 1000

    def test_reading_can_start_in_the_middle_of_a_batch(self, client: Client, topic: str) -> None:
        client.produce(topic, numbered(50), codec="gzip")
        received = read(client, topic, 13, offset=37)
        assert [each.offset for each in received] == list(range(37, 50))
        assert received[0].value == b"37"

    def test_many_records_are_read_in_order(self, client: Client, topic: str) -> None:
        sent = [Record(value=b"%6d" % number + bytes(1000)) for number in range(3000)]
        assert client.produce(topic, sent, idempotence=True) == list(range(3000))
        received = read(client, topic, 3000)
        assert [int(each.value[:6]) for each in received] == list(range(3000))

    @pytest.mark.parametrize("acks", [0, 1, -1])
    def test_records_arrive_with_any_acks(self, client: Client, topic: str, acks: int) -> None:
        client.produce(topic, values("sent"), acks=acks)
        assert [each.value for each in read(client, topic, 1)] == [b"sent"]

    def test_a_waiting_fetch_is_answered_when_a_record_arrives(self, client: Client, topic: str) -> None:
        with client.reader(topic, 0, max_wait_ms=WAIT_MS) as reader:
            assert reader.poll(0.3) == []
            produced = time.monotonic()
            client.produce(topic, values("at last"))
            received = eventually(lambda: reader.poll(TIMEOUT_S), "the record arrives", timeout_s=2 * WAIT_MS / 1000)
            assert [each.value for each in received] == [b"at last"]
            assert time.monotonic() - produced < WAIT_MS / 1000, "it did not come with the end of the wait"

    def test_a_record_larger_than_the_topic_allows_is_refused(self, client: Client, new_topic: NewTopic) -> None:
        topic = new_topic(config={"max.message.bytes": "1000"})
        with refused(ErrorCode.MESSAGE_TOO_LARGE):
            client.produce(topic, [Record(value=bytes(2000))])
        assert client.produce(topic, [Record(value=bytes(500))]) == [0]

    def test_a_record_of_a_megabyte_passes_where_the_topic_allows_it(self, client: Client, new_topic: NewTopic) -> None:
        topic = new_topic(config={"max.message.bytes": "5000000"})
        client.produce(topic, [Record(value=b"x" * 3_000_000), *values("small")])
        assert [len(each.value) for each in read(client, topic, 2)] == [3_000_000, 5]

    # --- offsets

    def test_earliest_and_latest_span_the_log(self, client: Client, topic: str) -> None:
        assert (client.earliest(topic), client.latest(topic)) == (0, 0)
        client.produce(topic, numbered(7))
        assert (client.earliest(topic), client.latest(topic)) == (0, 7)

    def test_a_time_leads_to_the_first_record_not_older(self, client: Client, topic: str) -> None:
        now = time.time_ns() // 1_000_000
        base = now - 1_000_000
        client.produce(topic, [Record(value=b"r", timestamp_ms=base + 100 * number) for number in range(10)])
        client.produce(topic, [Record(value=b"r", timestamp_ms=base + 100 * number) for number in range(10, 20)])
        assert client.offset_at(topic, base) == 0
        assert client.offset_at(topic, base - 5000) == 0
        assert client.offset_at(topic, base + 300) == 3
        assert client.offset_at(topic, base + 301) == 4
        assert client.offset_at(topic, base + 1500) == 15
        assert client.offset_at(topic, base + 1901) is None

    def test_the_greatest_timestamp_need_not_be_the_last(self, client: Client, topic: str) -> None:
        assert client.max_timestamp_offset(topic) is None
        now = time.time_ns() // 1_000_000
        client.produce(topic, [Record(value=b"r", timestamp_ms=now + step) for step in (0, 500, 900, 200)])
        client.produce(topic, [Record(value=b"r", timestamp_ms=now + step) for step in (300, 900, 100)])
        assert client.max_timestamp_offset(topic) == 2

    def test_reading_past_the_end_is_out_of_range(self, client: Client, topic: str) -> None:
        client.produce(topic, numbered(3))
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            read(client, topic, 1, offset=100)

    # --- deleting records

    def test_deleted_records_are_gone_and_the_rest_stays(self, client: Client, topic: str) -> None:
        client.produce(topic, numbered(10))
        assert client.delete_records(topic, before=4) == 4
        assert (client.earliest(topic), client.latest(topic)) == (4, 10)
        assert [each.value for each in read(client, topic, 6, offset=4)] == [b"%d" % n for n in range(4, 10)]
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            read(client, topic, 1, offset=3)

    def test_all_records_can_be_deleted(self, client: Client, topic: str) -> None:
        client.produce(topic, numbered(10))
        assert client.delete_records(topic, before=-1) == 10
        assert (client.earliest(topic), client.latest(topic)) == (10, 10)
        assert client.produce(topic, values("next")) == [10]

    def test_records_that_do_not_exist_cannot_be_deleted(self, client: Client, topic: str) -> None:
        client.produce(topic, numbered(10))
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            client.delete_records(topic, before=11)
        assert client.earliest(topic) == 0

    def test_deleting_less_than_before_changes_nothing(self, client: Client, topic: str) -> None:
        client.produce(topic, numbered(10))
        client.delete_records(topic, before=6)
        assert client.delete_records(topic, before=2) == 6
        assert client.earliest(topic) == 6

    # --- settings

    def test_a_topic_has_kafkas_defaults(self, client: Client, topic: str) -> None:
        described = client.describe_config(topic)
        assert {name: described[name].value for name in TOPIC_DEFAULTS} == TOPIC_DEFAULTS
        # min.insync.replicas is set for the whole cluster when Kafka formats its storage, hence no default (KIP-966).
        ours = {name for name in TOPIC_DEFAULTS if not described[name].is_default}
        assert ours <= {"min.insync.replicas"}

    def test_settings_given_at_creation_are_described(self, client: Client, new_topic: NewTopic) -> None:
        given = {"retention.ms": "12345", "cleanup.policy": "compact,delete", "max.message.bytes": "2000"}
        described = client.describe_config(new_topic(config=given))
        assert {name: described[name].value for name in given} == given
        assert not any(described[name].is_default for name in given)
        assert described["segment.bytes"].is_default

    def test_a_setting_can_be_changed_and_put_back(self, client: Client, topic: str) -> None:
        client.set_config(topic, {"retention.ms": "777000"})
        eventually(lambda: client.describe_config(topic)["retention.ms"].value == "777000", "the change is visible")
        client.set_config(topic, {"retention.ms": None})
        eventually(lambda: client.describe_config(topic)["retention.ms"].is_default, "the setting is a default again")
        assert client.describe_config(topic)["retention.ms"].value == TOPIC_DEFAULTS["retention.ms"]

    def test_changing_one_setting_leaves_the_others(self, client: Client, new_topic: NewTopic) -> None:
        topic = new_topic(config={"segment.ms": "60000"})
        client.set_config(topic, {"retention.ms": "777000"})
        eventually(lambda: client.describe_config(topic)["retention.ms"].value == "777000", "the change is visible")
        assert client.describe_config(topic)["segment.ms"].value == "60000"

    @pytest.mark.parametrize(
        "setting",
        [("retention.ms", "soon"), ("min.insync.replicas", "0"), ("no.such.setting", "1")],
        ids=lambda setting: setting[0],
    )
    def test_a_bad_change_is_refused_and_nothing_moves(
        self, client: Client, topic: str, setting: tuple[str, str]
    ) -> None:
        with refused(ErrorCode.INVALID_CONFIG):
            client.set_config(topic, {"segment.ms": "60000", **dict([setting])})
        assert client.describe_config(topic)["segment.ms"].is_default

    def test_a_changed_limit_holds_from_then_on(self, client: Client, topic: str) -> None:
        client.produce(topic, [Record(value=bytes(2000))])
        client.set_config(topic, {"max.message.bytes": "1000"})

        def is_refused() -> bool:
            try:
                client.produce(topic, [Record(value=bytes(2000))])
            except Refused:
                return True
            return False

        # Apache Kafka describes the new limit a moment before the partition goes by it.
        eventually(is_refused, "the limit holds")
        with refused(ErrorCode.MESSAGE_TOO_LARGE):
            client.produce(topic, [Record(value=bytes(2000))])

    def test_settings_of_an_unknown_topic_are_refused(self, client: Client, new_name: Callable[[], str]) -> None:
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            client.describe_config(new_name())

    def test_settings_of_an_unknown_topic_cannot_be_changed(self, client: Client, new_name: Callable[[], str]) -> None:
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            client.set_config(new_name(), {"retention.ms": "1"})

    # --- the cluster

    def test_the_cluster_is_the_one_we_connected_to(self, client: Client, broker: object) -> None:
        cluster = client.cluster()
        [(node, host, port)] = cluster.nodes
        assert f"{host}:{port}" == broker.bootstrap
        assert cluster.controller_id == node
        assert cluster.cluster_id
