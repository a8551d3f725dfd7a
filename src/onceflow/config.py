"""Settings under Kafka's names: what a broker and a topic can be told, checked when it is told.

Two tables, `BROKER_SETTINGS` and `TOPIC_SETTINGS`. A topic's value is found in this order, as in Apache Kafka: what the
topic itself was given, what the broker was given under the setting's `synonym`, the default. A broker is given settings
in three ways: while it runs, for this broker alone; while it runs, for all brokers; at start. The first of these that
has a setting decides. Only those in `DYNAMIC` can be given while it runs. `BrokerConfig` and `TopicConfig` are the
frozen, typed results that the rest of the code reads; nothing else parses a setting.

Settings that only mean something with replicas (`min.insync.replicas`, ...) are accepted and described, so that
tools and scripts written for Apache Kafka work unchanged; their text says that they have no effect here.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from onceflow.errors import ConfigError

__all__ = [
    "BROKER_SETTINGS",
    "DYNAMIC",
    "FLUSH_MESSAGES",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "Setting",
    "Source",
    "TopicConfig",
    "Type",
    "parse_assignments",
]

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
DAY_MS: Final = 86_400_000
MB: Final = 1024 * 1024
FLUSH_MESSAGES: Final = "log.flush.interval.messages"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


class Type(enum.IntEnum):
    """Config types as DescribeConfigs names them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Source(enum.IntEnum):
    """Where a value comes from, as DescribeConfigs names it."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One setting: its name, its type, its default (as text, the form in which Kafka shows it) and what it may be."""

    name: str
    type: Type
    default: str
    low: float | None = None
    high: float | None = None
    gaps: tuple[int, ...] = ()
    """Values between the two that do not exist."""
    choices: tuple[str, ...] = ()
    synonym: str = ""
    """For a topic setting, the broker setting that gives its default."""
    doc: str = ""
    sensitive: bool = False
    """A password or a key: never shown, and not taken from the command line, which everybody on the machine sees."""

    def parse(self, text: str) -> Any:
        """The typed value of `text`, or a `ConfigError` that says what is allowed."""
        text = text.strip()
        try:
            value = _PARSERS[self.type](text)
        except ValueError:
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: {self._expects()}.") from None
        words = value if isinstance(value, tuple) else (value,)
        if self.choices and any(word not in self.choices for word in words):
            raise ConfigError(f"Invalid value {text} for configuration {self.name}: {self._expects()}.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = self._limits()
            if value in self.gaps or not (low is None or value >= low) or not (high is None or value <= high):
                raise ConfigError(f"Invalid value {text} for configuration {self.name}: {self._expects()}.")
        return value

    def _limits(self) -> tuple[float | None, float | None]:
        low, high = self.low, self.high
        if self.type is Type.INT:
            return (-INT_MAX - 1 if low is None else low, INT_MAX if high is None else high)
        if self.type is Type.LONG:
            return (-LONG_MAX - 1 if low is None else low, LONG_MAX if high is None else high)
        return low, high

    def _expects(self) -> str:
        if self.choices:
            return f"it must be one of {', '.join(self.choices)}"
        kind = {Type.BOOLEAN: "true or false", Type.DOUBLE: "a number"}.get(self.type, "a whole number")
        if self.low is not None and self.high is not None:
            return f"it must be {kind} from {self.low:g} to {self.high:g}"
        if self.low is not None:
            return f"it must be {kind} of at least {self.low:g}"
        return f"it must be {kind}"


def _boolean(text: str) -> bool:
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError(text)


def _whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):  # Python also reads 1_000, Kafka does not
        raise ValueError(text)
    return int(text)


_PARSERS: Final[dict[Type, Callable[[str], Any]]] = {
    Type.BOOLEAN: _boolean,
    Type.STRING: str,
    Type.INT: _whole_number,
    Type.SHORT: _whole_number,
    Type.LONG: _whole_number,
    Type.DOUBLE: float,
    Type.LIST: lambda text: tuple(word.strip() for word in text.split(",") if word.strip()),
}

_ONE_PARTITION: Final = (
    "Partitions of the coordinator's own topic. Kafka has 50, to share the work among brokers; one node syncs one file."
)
_SMALL_SEGMENTS: Final = (
    "Segment size of the coordinator's own topic. Kafka has 100 MB; a start reads what is not compacted, and only "
    "sealed segments are."
)
_REPLICAS: Final = "Accepted for compatibility; without effect on a single node."


def _table(*settings: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({setting.name: setting for setting in settings})


def _s(name: str, type: Type, default: object, doc: str = "", **rest: Any) -> Setting:
    text = str(default).lower() if isinstance(default, bool) else str(default)
    return Setting(name=name, type=type, default=text, doc=doc, **rest)


TOPIC_SETTINGS: Final = _table(
    _s("cleanup.policy", Type.LIST, "delete", "What happens to old records: delete, compact, or both.",
       choices=("delete", "compact"), synonym="log.cleanup.policy"),
    _s("compression.gzip.level", Type.INT, -1, "Level where the broker compresses with gzip.",
       low=-1, high=9, gaps=(0,), synonym="compression.gzip.level"),
    _s("compression.lz4.level", Type.INT, 9, "Level where the broker compresses with lz4.",
       low=1, high=17, synonym="compression.lz4.level"),
    _s("compression.type", Type.STRING, "producer", "Codec of stored batches; `producer` keeps the sender's.",
       choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"), synonym="compression.type"),
    _s("compression.zstd.level", Type.INT, 3, "Level where the broker compresses with zstd.",
       low=-131072, high=22, synonym="compression.zstd.level"),
    _s("delete.retention.ms", Type.LONG, DAY_MS, "How long a tombstone stays readable in a compacted topic.",
       low=0, synonym="log.cleaner.delete.retention.ms"),
    _s("file.delete.delay.ms", Type.LONG, 60_000, "Accepted; files are freed at once here.",
       low=0, synonym="log.segment.delete.delay.ms"),
    _s("flush.messages", Type.LONG, LONG_MAX, "Accepted; --durability decides about flushing.",
       low=1, synonym="log.flush.interval.messages"),
    _s("flush.ms", Type.LONG, LONG_MAX, "Accepted; --durability decides about flushing.",
       low=0, synonym="log.flush.interval.ms"),
    _s("index.interval.bytes", Type.INT, 4096, "How many bytes of log lie between two index entries.",
       low=0, synonym="log.index.interval.bytes"),
    _s("max.compaction.lag.ms", Type.LONG, LONG_MAX, "A record is compacted at the latest after this time.",
       low=1, synonym="log.cleaner.max.compaction.lag.ms"),
    _s("max.message.bytes", Type.INT, 1_048_588, "The largest record batch that is taken.",
       low=0, synonym="message.max.bytes"),
    _s("message.timestamp.after.max.ms", Type.LONG, 3_600_000, "How far in the future a timestamp may be.",
       low=0, synonym="log.message.timestamp.after.max.ms"),
    _s("message.timestamp.before.max.ms", Type.LONG, LONG_MAX, "How far in the past a timestamp may be.",
       low=0, synonym="log.message.timestamp.before.max.ms"),
    _s("message.timestamp.type", Type.STRING, "CreateTime", "Whose clock stamps a record.",
       choices=("CreateTime", "LogAppendTime"), synonym="log.message.timestamp.type"),
    _s("min.cleanable.dirty.ratio", Type.DOUBLE, 0.5, "Share of uncompacted bytes from which compaction starts.",
       low=0, high=1, synonym="log.cleaner.min.cleanable.ratio"),
    _s("min.compaction.lag.ms", Type.LONG, 0, "A record stays uncompacted at least this long.",
       low=0, synonym="log.cleaner.min.compaction.lag.ms"),
    _s("min.insync.replicas", Type.INT, 1, _REPLICAS, low=1, synonym="min.insync.replicas"),
    _s("preallocate", Type.BOOLEAN, False, "Accepted; segment files grow as they are written.",
       synonym="log.preallocate"),
    _s("retention.bytes", Type.LONG, -1, "Size from which the oldest segments of a partition go; -1 for none.",
       synonym="log.retention.bytes"),
    _s("retention.ms", Type.LONG, 7 * DAY_MS, "Age from which a segment goes; -1 for never.",
       low=-1, synonym="log.retention.ms"),
    _s("segment.bytes", Type.INT, 1_073_741_824, "Size at which a new segment file is started.",
       low=14, synonym="log.segment.bytes"),
    _s("segment.index.bytes", Type.INT, 10_485_760, "Size of an index file at which a new segment is started.",
       low=4, synonym="log.index.size.max.bytes"),
    _s("segment.jitter.ms", Type.LONG, 0, "Random part of segment.ms.", low=0, synonym="log.roll.jitter.ms"),
    _s("segment.ms", Type.LONG, 7 * DAY_MS, "Age at which a new segment file is started.",
       low=1, synonym="log.roll.ms"),
    _s("unclean.leader.election.enable", Type.BOOLEAN, False, _REPLICAS,
       synonym="unclean.leader.election.enable"),
)  # fmt: skip

BROKER_SETTINGS: Final = _table(
    _s("node.id", Type.INT, 1, "This broker's id in metadata.", low=0),
    _s("listeners", Type.LIST, "PLAINTEXT://127.0.0.1:9092", "Where to listen: PROTOCOL://HOST:PORT, several with "
       "commas between; PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. --listen wins."),
    _s("advertised.listeners", Type.STRING, "", "Address told to clients, as PLAINTEXT://HOST:PORT; where a proxy "
       "or a container stands in between. One for each listener whose clients are told another address."),
    _s("num.partitions", Type.INT, 1, "Partitions of a topic that does not say how many.", low=1),
    _s("default.replication.factor", Type.INT, 1, _REPLICAS, low=1),
    _s("auto.create.topics.enable", Type.BOOLEAN, True, "Create a topic when a client asks for it."),
    _s("delete.topic.enable", Type.BOOLEAN, True, "Let clients delete topics."),
    _s("authorizer.class.name", Type.STRING, "", "Who decides what clients may do: empty for nobody (everybody may do "
       "everything), or Kafka's StandardAuthorizer for ACLs. --acls is short for it.",
       choices=("", STANDARD_AUTHORIZER)),
    _s("super.users", Type.STRING, "", "Who may do everything, whatever the ACLs say: User:admin;User:CN=..., with ; "
       "in between."),
    _s("allow.everyone.if.no.acl.found", Type.BOOLEAN, False, "Whether everybody may use what no ACL is about."),
    _s("socket.request.max.bytes", Type.INT, 104_857_600, "The largest request that is read.", low=1),
    _s("connections.max.idle.ms", Type.LONG, 600_000, "An idle connection is closed after this time."),
    _s("max.connections", Type.INT, INT_MAX, "Connections beyond this are closed at once.", low=0),
    _s("max.connections.per.ip", Type.INT, INT_MAX, "Connections from one address beyond this are closed at once.",
       low=0),
    _s("max.connections.per.ip.overrides", Type.LIST, "", "Other limits for single addresses: ADDRESS:COUNT,..."),
    _s("queued.max.request.bytes", Type.LONG, 128 * MB, "The most memory for large requests that are being received, "
       "of all connections together; who needs more waits. At least socket.request.max.bytes.", low=1),
    _s("socket.connection.setup.timeout.ms", Type.LONG, 30_000, "Within this time a new connection must have shaken "
       "hands and logged in, where the listener asks for that.", low=1),
    _s("connection.failed.authentication.delay.ms", Type.INT, 100, "How long who could not log in waits for the "
       "answer.", low=0),
    _s("connections.max.reauth.ms", Type.LONG, 0, "A login lasts this long; then the client has to log in again on the "
       "same connection (KIP-368). 0: as long as the connection."),
    _s("sasl.enabled.mechanisms", Type.LIST, "SCRAM-SHA-256,SCRAM-SHA-512", "How clients may log in: SCRAM-SHA-256, "
       "SCRAM-SHA-512, and PLAIN, which sends the password itself.",
       choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
    _s("sasl.server.max.receive.size", Type.INT, 524_288, "The largest request of a client that has not logged in.",
       low=1),
    _s("ssl.keystore.location", Type.STRING, "", "PEM file with the key and the certificates that the broker shows."),
    _s("ssl.keystore.type", Type.STRING, "PEM", "PEM is the only one.", choices=("PEM",)),
    _s("ssl.key.password", Type.STRING, "", "Opens an encrypted key. Only from a file: --config.", sensitive=True),
    _s("ssl.truststore.location", Type.STRING, "", "PEM file with the authorities that vouch for clients."),
    _s("ssl.truststore.type", Type.STRING, "PEM", "PEM is the only one.", choices=("PEM",)),
    _s("ssl.client.auth", Type.STRING, "none", "Whether clients have to show a certificate, may, or are not asked.",
       choices=("none", "requested", "required")),
    _s("ssl.enabled.protocols", Type.LIST, "TLSv1.2,TLSv1.3", "Versions of TLS that are spoken.",
       choices=("TLSv1.2", "TLSv1.3")),
    _s("fetch.max.bytes", Type.INT, 57_671_680, "The most that one fetch is answered with.", low=1024),
    _s("producer.id.expiration.ms", Type.INT, DAY_MS, "An idle producer is forgotten after this time.", low=1),
    _s("producer.id.expiration.check.interval.ms", Type.INT, 600_000, "How often idle producers are looked "
       "for.", low=1),
    _s("transaction.max.timeout.ms", Type.INT, 900_000, "The longest transaction timeout a producer may ask for.",
       low=1),
    _s("transactional.id.expiration.ms", Type.INT, 7 * DAY_MS, "A transactional id that nobody uses is forgotten after "
       "this time.", low=1),
    _s("transaction.abort.timed.out.transaction.cleanup.interval.ms", Type.INT, 10_000, "How often transactions are "
       "looked for that have outlived their timeout.", low=1),
    _s("transaction.remove.expired.transaction.cleanup.interval.ms", Type.INT, 3_600_000, "How often transactional ids "
       "are looked for that nobody uses any more.", low=1),
    _s("transaction.state.log.num.partitions", Type.INT, 1, _ONE_PARTITION, low=1),
    _s("transaction.state.log.segment.bytes", Type.INT, 4 * MB, _SMALL_SEGMENTS, low=1),
    _s("transaction.state.log.replication.factor", Type.SHORT, 1, _REPLICAS, low=1),
    _s("transaction.state.log.min.isr", Type.INT, 1, _REPLICAS, low=1),
    _s("offsets.topic.num.partitions", Type.INT, 1, _ONE_PARTITION, low=1),
    _s("offsets.topic.segment.bytes", Type.INT, 4 * MB, _SMALL_SEGMENTS, low=1),
    _s("offsets.topic.replication.factor", Type.SHORT, 1, _REPLICAS, low=1),
    _s("offset.metadata.max.bytes", Type.INT, 4096, "The longest text that may be stored with an offset."),
    _s("offsets.retention.minutes", Type.INT, 10_080, "Offsets of a group without members are forgotten after this "
       "time.", low=1),
    _s("offsets.retention.check.interval.ms", Type.LONG, 600_000, "How often offsets are looked for that have outlived "
       "their group.", low=1),
    _s("group.min.session.timeout.ms", Type.INT, 6_000, "The shortest session timeout a classic member may ask for."),
    _s("group.max.session.timeout.ms", Type.INT, 1_800_000, "The longest session timeout a classic member may ask "
       "for."),
    _s("group.initial.rebalance.delay.ms", Type.INT, 3_000, "How long an empty group waits for more members before it "
       "begins, and again for those that came meanwhile. onceflow.Broker has 0."),
    _s("group.max.size", Type.INT, INT_MAX, "The most members of a classic group.", low=1),
    _s("group.consumer.session.timeout.ms", Type.INT, 45_000, "A member of a consumer group that is silent for this "
       "long is put out.", low=1),
    _s("group.consumer.heartbeat.interval.ms", Type.INT, 5_000, "How often members of a consumer group report.", low=1),
    _s("group.consumer.max.size", Type.INT, INT_MAX, "The most members of a consumer group.", low=1),
    _s("group.consumer.assignors", Type.LIST, "uniform,range", "How the broker shares out partitions; the first is the "
       "default.", choices=("uniform", "range")),
    _s("group.consumer.migration.policy", Type.STRING, "bidirectional", "Which groups with members may change from the "
       "classic protocol to that of consumer groups (upgrade), and back (downgrade), when a member does.",
       choices=("disabled", "downgrade", "upgrade", "bidirectional")),
    _s("log.retention.check.interval.ms", Type.LONG, 300_000, "How often retention is applied.", low=1),
    _s("log.cleaner.enable", Type.BOOLEAN, True, "Compact topics with cleanup.policy=compact."),
    _s("log.cleaner.backoff.ms", Type.LONG, 15_000, "How often topics are looked at for compaction.", low=0),
    _s("log.flush.offset.checkpoint.interval.ms", Type.INT, 60_000, "How often the log is flushed up to a "
       "checkpoint, from which a restart after a crash begins to check.", low=1),
    _s("log.retention.hours", Type.INT, 168, "Like log.retention.ms, in hours; the finer unit wins."),
    _s("log.retention.minutes", Type.INT, "", "Like log.retention.ms, in minutes; the finer unit wins."),
    _s("log.roll.hours", Type.INT, 168, "Like log.roll.ms, in hours; the finer unit wins.", low=1),
    *(
        Setting(name=t.synonym, type=t.type, default="" if t.synonym in ("log.retention.ms", "log.roll.ms")
                else t.default, low=t.low, high=t.high, gaps=t.gaps, choices=t.choices, doc=t.doc)
        for t in TOPIC_SETTINGS.values()
    ),
)  # fmt: skip

DYNAMIC: Final = frozenset(t.synonym for t in TOPIC_SETTINGS.values()) - {FLUSH_MESSAGES, "log.flush.interval.ms"} | {
    "log.cleaner.backoff.ms",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "producer.id.expiration.ms",
}
"""What can be changed while the broker runs: of our settings those that Kafka's DynamicBrokerConfig has, but for
flushing, about which --durability decides, and for listeners, TLS and logins, which are read at start."""

# The ids of new producers come from here (KIP-98); Kafka hands them out in blocks as well.
PRODUCER_ID_BLOCK: Final = 1000

_COARSER: Final = {
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
}


def _known(table: Mapping[str, Setting], name: str, what: str) -> Setting:
    try:
        return table[name]
    except KeyError:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError(f"Unknown {what} {name}.{hint}") from None


def parse_assignments(pairs: list[str]) -> dict[str, str]:
    """`["name=value", ...]` of a command line as a mapping."""
    result = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"Settings are given as name=value, not as {pair!r}.")
        result[name.strip()] = value.strip()
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class TopicConfig:
    """What a partition's log and its cleaner go by; one object per distinct set of values, read on the hot path."""

    compact: bool = False
    delete: bool = True
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    delete_retention_ms: int = DAY_MS
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    timestamp_after_max_ms: int = 3_600_000
    timestamp_before_max_ms: int = LONG_MAX
    append_time: bool = False
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    retention_bytes: int = -1
    retention_ms: int = 7 * DAY_MS
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 7 * DAY_MS

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TopicConfig:
        """From parsed values, one for each of `TOPIC_SETTINGS`."""
        return cls(
            compact="compact" in values["cleanup.policy"],
            delete="delete" in values["cleanup.policy"],
            compression_type=values["compression.type"],
            compression_gzip_level=values["compression.gzip.level"],
            compression_lz4_level=values["compression.lz4.level"],
            compression_zstd_level=values["compression.zstd.level"],
            delete_retention_ms=values["delete.retention.ms"],
            index_interval_bytes=values["index.interval.bytes"],
            max_compaction_lag_ms=values["max.compaction.lag.ms"],
            max_message_bytes=values["max.message.bytes"],
            timestamp_after_max_ms=values["message.timestamp.after.max.ms"],
            timestamp_before_max_ms=values["message.timestamp.before.max.ms"],
            append_time=values["message.timestamp.type"] == "LogAppendTime",
            min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
            min_compaction_lag_ms=values["min.compaction.lag.ms"],
            retention_bytes=values["retention.bytes"],
            retention_ms=values["retention.ms"],
            segment_bytes=values["segment.bytes"],
            segment_index_bytes=values["segment.index.bytes"],
            segment_jitter_ms=values["segment.jitter.ms"],
            segment_ms=values["segment.ms"],
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokerConfig:
    """A broker's settings: what was given, checked, and defaults for the rest."""

    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings as they were given at start, by name. Passwords may be among them."""
    for_this_broker: Mapping[str, str] = field(default_factory=dict)
    """Given while it ran, for this broker alone."""
    for_all_brokers: Mapping[str, str] = field(default_factory=dict)
    """Given while it ran, as the cluster's default."""
    fsync: bool = True
    """An acknowledged write survives loss of power; otherwise it survives the death of the process."""

    def __post_init__(self) -> None:
        for settings in (self.given, self.for_all_brokers, self.for_this_broker):
            for name, text in settings.items():
                _known(BROKER_SETTINGS, name, "setting").parse(text)
        for name in {*self.for_all_brokers, *self.for_this_broker}:
            if name not in DYNAMIC:
                raise ConfigError(f"Cannot update these configs dynamically: [{name}]. The setting is given at start.")

    def text(self, name: str) -> str:
        """The value of a broker setting as text, after synonyms in coarser units."""
        for settings in (self.for_this_broker, self.for_all_brokers, self.given):
            if name in settings:
                return settings[name]
        for coarser, unit_ms in _COARSER.get(name, ()):
            value = self.text(coarser)
            if value != "":
                return str(int(value) * unit_ms if int(value) >= 0 else -1)
        return BROKER_SETTINGS[name].default

    def in_effect(self, name: str) -> tuple[str, Source]:
        """A broker setting as DescribeConfigs shows it, and where it comes from. How many records may wait for the disk
        is Kafka's word for --durability, which decides whatever was given: 1, or as many as there are."""
        if name == FLUSH_MESSAGES:
            return ("1", Source.DEFAULT) if self.fsync else (str(LONG_MAX), Source.STATIC_BROKER)
        return self.text(name), self.values(name)[0][2]

    def values(self, name: str) -> list[tuple[str, str, Source]]:
        """All values that a broker setting was given, each as (name, value, source), and its default. The first one is
        in effect; the others would be without it. Some have the name and the unit of a coarser synonym."""
        found = []
        for each in (name, *(coarser for coarser, _ in _COARSER.get(name, ()))):
            for settings, source in (
                (self.for_this_broker, Source.DYNAMIC_BROKER),
                (self.for_all_brokers, Source.DYNAMIC_DEFAULT_BROKER),
                (self.given, Source.STATIC_BROKER),
            ):
                if each in settings:
                    found.append((each, settings[each], source))
            if name == each and name in _COARSER:
                continue  # its default is that of a synonym
            if name == each or BROKER_SETTINGS[each].default:
                found.append((each, BROKER_SETTINGS[each].default, Source.DEFAULT))
        return found

    def __getitem__(self, name: str) -> Any:
        """The typed value of a broker setting."""
        return BROKER_SETTINGS[name].parse(self.text(name))

    def check_topic(self, overrides: Mapping[str, str | None]) -> None:
        """Raise `ConfigError` unless every override is a topic setting with a value it can have."""
        for name, text in overrides.items():
            setting = _known(TOPIC_SETTINGS, name, "topic config name")
            if text is None:
                raise ConfigError(f"Null value not supported for topic configs: {name}.")
            setting.parse(text)

    def topic_text(self, name: str, overrides: Mapping[str, str]) -> tuple[str, Source]:
        """A topic's value as text, and where it comes from."""
        if name in overrides:
            return overrides[name], Source.TOPIC
        synonym = TOPIC_SETTINGS[name].synonym
        return self.text(synonym), self.values(synonym)[0][2]

    def topic(self, overrides: Mapping[str, str]) -> TopicConfig:
        return TopicConfig.of(
            {name: setting.parse(self.topic_text(name, overrides)[0]) for name, setting in TOPIC_SETTINGS.items()}
        )
