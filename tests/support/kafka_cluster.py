"""An Apache Kafka of three brokers on this machine, each also a controller: for what only a failover shows.

    with ThreeBrokers() as cluster:
        cluster.kill(cluster.leader("orders", 0))

Any one of them may be away: topics have three replicas and writes need two (`min.insync.replicas`), those of the
coordinators too, and two of three controllers are a quorum.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, TypeVar

from onceflow.errors import ErrorCode
from onceflow.ports import ReservedPort
from onceflow.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from onceflow.wire.messages.find_coordinator import FindCoordinatorRequest
from onceflow.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.support.apache_kafka import HOST, QUICK_JVM_OPTIONS, ApacheKafka
from tests.support.raw import ConnectionClosed, Wire, batch
from tests.support.waiting import eventually

__all__ = ["ThreeBrokers"]

NODES = (1, 2, 3)
HEAP_MB = 384
GROUP, TRANSACTION = 0, 1
FAILOVER_S = 60.0
T = TypeVar("T")


class ThreeBrokers:
    """Apache Kafka as a context manager; nodes are called 1, 2 and 3."""

    name = "kafka"

    def __init__(self, properties: dict[str, object] | None = None) -> None:
        self._reserved = [ReservedPort(HOST) for _ in range(2 * len(NODES))]
        ports = [each.number for each in self._reserved]
        controllers = dict(zip(NODES, ports[len(NODES) :], strict=True))
        shared = {**_for_three(controllers), **(properties or {})}
        self._nodes = {
            node: ApacheKafka(
                {**shared, "node.id": node},
                heap_mb=HEAP_MB,
                jvm_options=QUICK_JVM_OPTIONS,
                ports=(port, controllers[node]),
            )
            for node, port in zip(NODES, ports, strict=False)
        }
        self._running: set[int] = set()

    @property
    def bootstrap(self) -> str:
        """All three addresses: a client must find the cluster whichever is away."""
        return ",".join(node.bootstrap for node in self._nodes.values())

    @property
    def nodes(self) -> dict[int, ApacheKafka]:
        """What starts and ends a node without waiting for the others, for who keeps count of them."""
        return dict(self._nodes)

    def pid(self, node: int) -> int:
        return self._nodes[node].pid

    def __enter__(self) -> ThreeBrokers:
        with ExitStack() as undo:
            undo.callback(self.close)
            with ThreadPoolExecutor(len(NODES)) as pool:
                list(pool.map(ApacheKafka.launch, self._nodes.values()))
            for node in NODES:
                self._await_start(node)
            undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        self._running.clear()

    def kill(self, node: int) -> None:
        """SIGKILL. The others notice when its session ends (`broker.session.timeout.ms`, two seconds here)."""
        self._running.discard(node)
        self._nodes[node].kill()

    def start(self, node: int) -> None:
        """Start a node that was killed, and wait until the cluster counts it in again."""
        self._nodes[node].launch()
        self._await_start(node)

    def _await_start(self, node: int) -> None:
        self._nodes[node].wait_until_it_answers()
        self._running.add(node)
        if len(self._running) == len(NODES):
            self._ask_until(lambda wire: len(wire.ask(MetadataRequest(topics=[])).brokers) == len(NODES), "all are up")

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """With three replicas, once every partition has them; setting names are written with underscores."""
        settings = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in config.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=len(NODES), configs=settings)

        def create(wire: Wire) -> bool:
            [created] = wire.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000)).topics
            return created.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)

        self._ask_until(create, f"{name} is created")
        self._ask_until(
            lambda wire: [len(each.isr_nodes) for each in _partitions(wire, name)] == [len(NODES)] * partitions,
            f"{name} has all its replicas",
        )

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition, and that runs."""

        def find(wire: Wire) -> int | None:
            leaders = [each.leader_id for each in _partitions(wire, topic) if each.partition_index == partition]
            return leaders[0] if leaders and leaders[0] in self._running else None

        return self._ask_until(find, f"{topic}-{partition} has a leader")

    def produce(self, topic: str, *values: str, partition: int = 0) -> None:
        """One batch, acknowledged by all replicas in sync; sent again if the leader changes meanwhile."""

        def send(wire: Wire) -> bool:
            return wire.produce(topic, batch(*values), partition=partition).error_code == ErrorCode.NONE

        self._ask_until(send, f"{topic}-{partition} takes a batch")

    def transaction_coordinator(self, transactional_id: str) -> int:
        return self._coordinator(transactional_id, TRANSACTION)

    def group_coordinator(self, group: str) -> int:
        return self._coordinator(group, GROUP)

    def _coordinator(self, key: str, kind: int) -> int:
        def find(wire: Wire) -> int | None:
            [found] = wire.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])).coordinators
            return found.node_id if found.error_code == ErrorCode.NONE and found.node_id in self._running else None

        return self._ask_until(find, f"{key} has a coordinator")

    def _ask_until(self, ask: Callable[[Wire], T | None], what: str) -> T:
        """Ask nodes that run, one after the other, until one has an answer."""

        def probe() -> T | None:
            for node in sorted(self._running):
                with suppress(OSError, ConnectionClosed), Wire(self._nodes[node].bootstrap) as wire:
                    if answer := ask(wire):
                        return answer
            return None

        return eventually(probe, what, timeout_s=FAILOVER_S, every_s=0.1)  # type: ignore[return-value]


def _partitions(wire: Wire, topic: str) -> list[Any]:
    asked = [MetadataRequestTopic(name=topic)]
    [found] = wire.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False)).topics
    return found.partitions


def _for_three(controllers: dict[int, int]) -> dict[str, object]:
    copies = len(NODES)
    return {
        "controller.quorum.voters": ",".join(f"{node}@{HOST}:{port}" for node, port in controllers.items()),
        "default.replication.factor": copies,
        "min.insync.replicas": copies - 1,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": copies - 1,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": copies - 1,
        # How soon the death of a node is noticed: by the others as brokers, and as controllers.
        "broker.session.timeout.ms": 2000,
        "broker.heartbeat.interval.ms": 250,
        "controller.quorum.fetch.timeout.ms": 2000,
        "controller.quorum.election.timeout.ms": 500,
        "replica.lag.time.max.ms": 5000,
    }
