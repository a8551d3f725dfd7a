"""Files of settings, in every format, become the same facts; what cannot be read is a sentence without its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.doctor.facts import ClientFacts
from onceflow.doctor.files import read_clients, read_settings, read_spark
from onceflow.doctor.setting_names import CONSUMER_NAMES, KNOWN_NAMES, PRODUCER_NAMES
from onceflow.errors import ConfigError

PROPERTIES = """\
# a comment
! another
bootstrap.servers=kafka:9092
acks = all
transactional.id : billing-0
retries 5
sasl.jaas.config=Module required \\
    username="u" \\
    password="p=w:d";
client.id=\\u0062illing\\ 1
"""
JSON = '{"bootstrap.servers": "kafka:9092", "producer": {"acks": "all", "retries": 5, "enable": {"idempotence": true}}}'
YAML = """\
---
bootstrap.servers: kafka:9092   # where
producer:
  acks: "all"
  retries: 5
  enable.idempotence: true
consumer:
  group:
    id: billing
"""


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_properties_are_read_as_java_reads_them(written: Path) -> None:
    assert read_settings(write(written, "a.properties", PROPERTIES)) == {
        "bootstrap.servers": "kafka:9092",
        "acks": "all",
        "transactional.id": "billing-0",
        "retries": "5",
        "sasl.jaas.config": 'Module required username="u" password="p=w:d";',
        "client.id": "billing 1",
    }


def test_what_is_nested_in_json_is_joined_with_dots(written: Path) -> None:
    assert read_settings(write(written, "a.json", JSON)) == {
        "bootstrap.servers": "kafka:9092",
        "producer.acks": "all",
        "producer.retries": "5",
        "producer.enable.idempotence": "true",
    }


def test_sections_of_a_file_are_clients_with_what_they_share(written: Path) -> None:
    producer, consumer = read_clients(write(written, "a.yaml", YAML))
    shared = {"bootstrap.servers": "kafka:9092"}
    assert (producer.role, consumer.role) == ("producer", "consumer")
    assert producer.values == shared | {"acks": "all", "retries": "5", "enable.idempotence": "true"}
    assert consumer.values == shared | {"group.id": "billing"}


def test_yaml_is_all_of_yaml(written: Path) -> None:
    text = """
%YAML 1.1
---
retries: &many 5
max.block.ms: *many
bootstrap.servers: [a, b]
producer: {acks: all, enable.idempotence: yes, "client.id": '#1'}
consumer:
  group.id: >-
    billing
    service
  empty:
shared: &shared {linger.ms: 1}
other: {<<: *shared, 5: 6}
"""
    assert read_settings(write(written, "a.yaml", text)) == {
        "retries": "5",
        "max.block.ms": "5",
        "bootstrap.servers": "a,b",
        "producer.acks": "all",
        "producer.enable.idempotence": "true",
        "producer.client.id": "#1",
        "consumer.group.id": "billing service",
        "shared.linger.ms": "1",
        "other.linger.ms": "1",
        "other.5": "6",
    }


def test_of_several_documents_the_later_ones_win(written: Path) -> None:
    assert read_settings(write(written, "a.yaml", "acks: 0\nretries: 1\n---\nacks: all\n...\n---\n")) == {
        "acks": "all",
        "retries": "1",
    }


def test_a_file_with_braces_is_yaml_if_it_is_called_so(written: Path) -> None:
    assert read_settings(write(written, "a.yml", "{acks: all}")) == {"acks": "all"}


BOMBS = {
    "lists": "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30)),
    "merged": "a0: &a0 {k: 1}\n"
    + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 30)),
    "nested": "a0: &a0 {k: 1, l: 2}\n" + "".join(f"a{n}: &a{n} {{x: *a{n - 1}, y: *a{n - 1}}}\n" for n in range(1, 40)),
}


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_bomb_of_aliases_is_refused_before_it_is_one(written: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="stands for more than 20,000 settings"):
        read_settings(write(written, "a.yaml", text))


def roles(folder: Path, text: str, **options: str) -> list[tuple[str, str]]:
    found: list[ClientFacts] = read_clients(write(folder, "c.properties", text), **options)
    return [(client.role, client.flavor) for client in found]


def test_what_a_file_is_for_is_told_by_its_settings(written: Path) -> None:
    assert roles(written, "acks=all\nkey.serializer=x") == [("producer", "java")]
    assert roles(written, "group.id=a\nenable.auto.offset.store=false") == [("consumer", "librdkafka")]
    assert roles(written, "acks=all\ngroup.id=a") == [("producer", "unknown"), ("consumer", "unknown")]
    assert roles(written, "application.id=a\nproducer.acks=all") == [("streams", "java")]
    assert roles(written, "client.id=a", role="consumer", flavor="java") == [("consumer", "java")]
    assert roles(written, "spring.kafka.consumer.group.id=a") == [("consumer", "java")], "Spring is Java"


def test_spring_boot_has_names_of_its_own_for_kafkas_settings(written: Path) -> None:
    text = """
server:
  port: 8080
spring:
  kafka:
    bootstrap-servers: b
    listener:
      ack-mode: batch
    producer:
      transaction-id-prefix: tx-
      properties:
        max-in-flight: kept
    consumer:
      isolation-level: read_committed
      enable-auto-commit: false
"""
    producer, consumer = read_clients(write(written, "application.yaml", text))
    assert producer.values == {"bootstrap.servers": "b", "transactional.id": "tx-", "max-in-flight": "kept"}
    assert consumer.values == {
        "bootstrap.servers": "b",
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
    }


def test_streams_of_spring_boot_are_not_passed_over(written: Path) -> None:
    text = "spring.kafka.streams.application-id=s\nspring.kafka.streams.properties.processing.guarantee=at_least_once\n"
    [streams] = read_clients(write(written, "application.properties", text))
    assert (streams.role, streams.values) == (
        "streams",
        {"application.id": "s", "processing.guarantee": "at_least_once"},
    )
    assert roles(written, f"{text}spring.kafka.producer.acks=all\n") == [("producer", "java"), ("streams", "java")]


def test_a_consumer_is_not_blamed_for_the_producers_settings(written: Path) -> None:
    _, consumer = read_clients(write(written, "c.properties", "acks=1\ngroup.id=a\nbootstrap.servers=b"))
    assert consumer.values == {"group.id": "a", "bootstrap.servers": "b"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.properties", "client.id=secret", "--role"),
        ("a.json", '{"sasl.password": "secret"', "not JSON (line 1)"),
        ("a.json", '["secret"]', "one JSON object"),
        ("a.yaml", "acks: all\n- secret\n", "line 2"),
        ("a.yaml", "password: secret: more", "not YAML (line 1)"),
        ("a.yaml", "a: [secret", "not YAML (line 1)"),
        ("a.yaml", "a: \x07secret", "not YAML"),
        ("a.yaml", "- secret", "names and values (line 1)"),
        ("a.yaml", "secret", "names and values (line 1)"),
        ("a.yaml", "a: 1\nb: !!python/object:os.system secret", "not YAML (line 2)"),
        ("a.yaml", "a: !!timestamp secret", "not YAML, or not of the kind"),
        ("a.yaml", "a: &secret [*secret]", "not YAML, or not of the kind"),
        ("a.yaml", "a: " + "[" * 2_000, "not YAML, or not of the kind"),
        ("a.yaml", "b: 1\na: *secret", "not YAML (line 2)"),
        ("missing.properties", None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_sentence_without_its_content(
    written: Path, name: str, text: str | None, words: str
) -> None:
    path = str(written / name) if text is None else write(written, name, text)
    with pytest.raises(ConfigError) as problem:
        read_clients(path)
    assert words in str(problem.value)
    assert "secret" not in str(problem.value)


def test_binary_and_giant_files_are_refused(written: Path) -> None:
    (written / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file"):
        read_settings(str(written / "binary"))
    (written / "giant").write_bytes(b"a" * 1_000_001)
    with pytest.raises(ConfigError, match="larger than"):
        read_settings(str(written / "giant"))


def test_spark_defaults_are_settings_without_a_query(written: Path) -> None:
    job = read_spark(write(written, "spark-defaults.conf", "spark.master   yarn\nspark.speculation\ttrue\n"))
    assert job.conf == {"spark.master": "yarn", "spark.speculation": "true"}
    assert (job.sources, job.sinks, job.queries) == ((), (), ())


def test_an_empty_file_is_not_a_good_job(written: Path) -> None:
    with pytest.raises(ConfigError, match="has no settings in it"):
        read_spark(write(written, "spark-defaults.conf", "# nothing\n"))


def test_a_job_file_says_what_is_read_and_written(written: Path) -> None:
    job = read_spark(
        write(
            written,
            "job.json",
            """{"conf": {"spark.speculation": false},
                "source": {"format": "kafka", "options": {"subscribe": "orders", "failOnDataLoss": false}},
                "sink": {"app_id": "billing", "checkpointLocation": "s3://c"}, "trigger": "10 seconds",
                "stateful": true}""",
        )
    )
    assert job.conf == {"spark.speculation": "false"}
    assert job.sources == ({"format": "kafka", "subscribe": "orders", "failondataloss": "false"},)
    assert job.sinks == ({"app_id": "billing", "format": "onceflow"},)
    assert job.queries == ({"trigger": "10 seconds", "checkpointlocation": "s3://c"},)
    assert job.stateful is True


def test_no_setting_is_of_producers_and_of_consumers_alone() -> None:
    assert not PRODUCER_NAMES & CONSUMER_NAMES
    assert {"transactional.id", "isolation.level", "bootstrap.servers", "processing.guarantee"} <= KNOWN_NAMES
