"""Arguments of `consume_into` that cannot be are refused before anything starts."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from onceflow.errors import ConfigError
from onceflow.sinks.consumer_settings import ConsumeSettings
from onceflow.sinks.consuming import consume_into

NOBODY = "127.0.0.1:1"


def settings(**rest: Any) -> ConsumeSettings:
    return ConsumeSettings(**{"topics": ("t",), "group": "g", "bootstrap_servers": NOBODY, **rest})


def consumer(**rest: Any) -> dict[str, Any]:
    return settings(**rest).consumer(print, print)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"topics": ()}, "topic= is empty"),
        ({"topics": ("",)}, "topic='' is not the name of a topic"),
        ({"topics": ("^orders.*",)}, "is a pattern"),
        ({"group": " "}, "group= must be a name"),
        ({"starting_offsets": "erliest"}, "starting_offsets='erliest' does not exist.*did you mean 'earliest'"),
        ({"max_records": 0}, "max_records=0 is not possible"),
        ({"max_records": True}, "max_records=True is not possible"),
        ({"retries": -1}, "retries=-1 is not possible"),
        ({"patience_s": "long"}, "patience_s='long' is not possible"),
        ({"bootstrap_servers": "a:b"}, "'a:b' is not an address"),
        ({"kafka": {"kafka.security.protocol": "SSL"}}, "write 'security.protocol'"),
        ({"kafka": {"isolation.level": "read_uncommitted"}}, r"kafka=\{'isolation.level': ...\} cannot be set"),
        ({"kafka": {"auto.offset.reset": "latest"}}, "cannot be set"),
        ({"kafka": {"enable.auto.commit": True}}, "cannot be set"),
        ({"kafka": {"group.id": "other"}}, "cannot be set"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings(**wrong)


def test_wrong_arguments_of_the_function_are_refused_too() -> None:
    place = {"group": "g", "bootstrap_servers": NOBODY}
    with pytest.raises(ConfigError, match="no argument 'max_record'"):
        consume_into("sqlite:///x.db", "t", print, max_record=3, **place)
    with pytest.raises(ConfigError, match="fn must be a function"):
        consume_into("sqlite:///x.db", "t", "count", **place)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no address of a database"):
        consume_into("mysql://x", "t", print, **place)
    with pytest.raises(ConfigError, match="stop=3 is neither an event nor a function"):
        consume_into("sqlite:///x.db", "t", print, stop=3, **place)  # type: ignore[arg-type]


def test_a_function_that_does_nothing_when_it_is_called_is_refused() -> None:
    """Its records would count as done."""

    async def asynchronous(cursor: Any, records: Any) -> None: ...

    def generator(cursor: Any, records: Any) -> Any:
        yield

    class Callable:
        async def __call__(self, cursor: Any, records: Any) -> None: ...

    for wrong in (asynchronous, generator, Callable()):
        with pytest.raises(ConfigError, match="and it is async or has a yield"):
            consume_into("sqlite:///x.db", "t", wrong, group="g", bootstrap_servers=NOBODY)


def test_it_needs_no_spark() -> None:
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'numpy', 'pandas')))\n"
        "from onceflow.sinks.consuming import consume_into\n"
        "from onceflow.sinks.increments import increment\n"
        "from onceflow.sinks.databases import postgresql_session, sqlite_session, open_database\n"
        "open_database('sqlite:///x.db'); open_database('postgresql://127.0.0.1/x')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_what_exactly_once_rests_on_is_set() -> None:
    made = consumer(kafka={"session.timeout.ms": 9000})
    expected = {
        "group.id": "g",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 9000,
    }
    assert expected.items() <= made.items()


@pytest.mark.parametrize(
    ("kafka", "strategy", "is_incremental"),
    [
        ({}, "cooperative-sticky", True),
        ({"partition.assignment.strategy": "range"}, "range", False),
        ({"group.protocol": "consumer"}, None, True),
    ],
)
def test_how_partitions_are_given_depends_on_the_protocol(
    kafka: dict[str, str], strategy: str | None, is_incremental: bool
) -> None:
    assert consumer(kafka=kafka).get("partition.assignment.strategy") == strategy
    assert settings(kafka=kafka).is_incremental is is_incremental


def test_passwords_are_not_shown() -> None:
    assert "secret" not in repr(settings(kafka={"sasl.password": "secret"}))
