"""The names of client settings, as Java's clients (4.3) and librdkafka (2.x) have them; for finding misspelt ones, and
for telling by its settings what a file is for.

TLS and login settings are left out: they are many, and a wrong one is noticed at once, since no connection comes about.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CONSUMER_NAMES",
    "JAVA_MARKS",
    "KNOWN_NAMES",
    "LIBRDKAFKA_MARKS",
    "PRODUCER_NAMES",
    "SECURITY_PREFIXES",
    "STREAMS_NAMES",
]

SECURITY_PREFIXES: Final = ("ssl.", "sasl.", "ssl_", "https.")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_JAVA_SHARED: Final = _names(
    """
    bootstrap.servers client.dns.lookup client.id config.providers connections.max.idle.ms enable.metrics.push
    interceptor.classes metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    security.protocol security.providers send.buffer.bytes socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms
    """
)

_JAVA_PRODUCER: Final = _names(
    """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type
    compression.zstd.level delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms
    max.in.flight.requests.per.connection max.request.size metadata.max.idle.ms
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys retries transaction.timeout.ms transaction.two.phase.commit.enable transactional.id
    value.serializer
    """
)

_JAVA_CONSUMER: Final = _names(
    """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs client.rack
    default.api.timeout.ms enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms
    fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    internal.throw.on.fetch.stable.offset.unsupported isolation.level key.deserializer max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
    share.acknowledgement.mode share.acquire.mode value.deserializer
    """
)

_LIBRDKAFKA_SHARED: Final = _names(
    """
    api.version.fallback.ms api.version.request api.version.request.timeout.ms background_event_cb
    broker.address.family broker.address.ttl broker.version.fallback builtin.features closesocket_cb connect_cb
    debug default_topic_conf enable.random.seed enable.sasl.oauthbearer.unsecure.jwt
    enable.ssl.certificate.verification enabled_events error_cb interceptors internal.termination.signal
    log.connection.close log.queue log.thread.name log_cb log_level max.in.flight message.copy.max.bytes
    message.max.bytes metadata.broker.list oauthbearer_token_refresh_cb opaque open_cb plugin.library.paths
    receive.message.max.bytes reconnect.backoff.jitter.ms resolve_cb socket.blocking.max.ms
    socket.keepalive.enable socket.max.fails socket.nagle.disable socket.receive.buffer.bytes
    socket.send.buffer.bytes socket.timeout.ms socket_cb statistics.interval.ms stats_cb throttle_cb
    topic.blacklist topic.metadata.propagation.max.ms topic.metadata.refresh.fast.cnt
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.sparse
    """
)

_LIBRDKAFKA_PRODUCER: Final = _names(
    """
    batch.num.messages compression.codec compression.level delivery.report.only.error dr_cb dr_msg_cb
    enable.gapless.guarantee message.send.max.retries message.timeout.ms msg_order_cmp partitioner
    partitioner_cb produce.offset.report queue.buffering.backpressure.threshold queue.buffering.max.kbytes
    queue.buffering.max.messages queue.buffering.max.ms queuing.strategy request.required.acks
    sticky.partitioning.linger.ms
    """
)

_LIBRDKAFKA_CONSUMER: Final = _names(
    """
    auto.commit.enable consume.callback.max.messages consume_cb coordinator.query.interval.ms
    enable.auto.offset.store enable.partition.eof fetch.error.backoff.ms fetch.message.max.bytes
    fetch.queue.backoff.ms fetch.wait.max.ms group.protocol.type offset.store.method offset.store.path
    offset.store.sync.interval.ms offset_commit_cb queued.max.messages.kbytes queued.min.messages rebalance_cb
    """
)

STREAMS_NAMES: Final = _names(
    """
    acceptable.recovery.lag allow.os.group.write.access application.id application.server
    buffered.records.per.partition built.in.metrics.version cache.max.bytes.buffering commit.interval.ms
    default.client.supplier default.deserialization.exception.handler default.dsl.store default.key.serde
    default.list.key.serde.inner default.list.key.serde.type default.list.value.serde.inner
    default.list.value.serde.type default.production.exception.handler default.timestamp.extractor
    default.value.serde deserialization.exception.handler dsl.store.format dsl.store.suppliers.class
    ensure.explicit.internal.resource.naming errors.dead.letter.queue.topic.name log.summary.interval.ms
    max.task.idle.ms max.warmup.replicas num.standby.replicas num.stream.threads poll.ms
    probing.rebalance.interval.ms processing.exception.handler processing.exception.handler.global.enabled
    processing.guarantee processor.wrapper.class production.exception.handler
    rack.aware.assignment.non_overlap_cost rack.aware.assignment.strategy rack.aware.assignment.tags
    rack.aware.assignment.traffic_cost repartition.purge.interval.ms replication.factor rocksdb.config.setter
    state.cleanup.delay.ms state.cleanup.dir.max.age.ms state.dir statestore.cache.max.bytes task.assignor.class
    task.timeout.ms topology.optimization upgrade.from window.size.ms windowed.inner.class.serde
    windowstore.changelog.additional.retention.ms
    """
)
"""What only Kafka Streams has."""

PRODUCER_NAMES: Final = _JAVA_PRODUCER | _LIBRDKAFKA_PRODUCER
"""What only producers have."""
CONSUMER_NAMES: Final = _JAVA_CONSUMER | _LIBRDKAFKA_CONSUMER
"""What only consumers have."""
KNOWN_NAMES: Final = PRODUCER_NAMES | CONSUMER_NAMES | _JAVA_SHARED | _LIBRDKAFKA_SHARED | STREAMS_NAMES

LIBRDKAFKA_MARKS: Final = (
    _LIBRDKAFKA_SHARED
    | _LIBRDKAFKA_PRODUCER
    | _LIBRDKAFKA_CONSUMER
    | {"sasl.username", "sasl.password", "sasl.mechanisms", "ssl.ca.location", "ssl.certificate.location"}
)
"""Who has one of these is a client on librdkafka: confluent-kafka for Python, Go and .NET, and many more."""
JAVA_MARKS: Final = STREAMS_NAMES | _names(
    """
    buffer.memory interceptor.classes key.deserializer key.serializer max.block.ms max.request.size metric.reporters
    partitioner.class sasl.jaas.config ssl.truststore.location ssl.truststore.type value.deserializer value.serializer
    """
)
