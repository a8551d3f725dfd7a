"""A real Apache Kafka, one broker or three, as `onceflow verify` takes brokers: kill, pause, restart.

A node that was killed or stopped is launched and not waited for: a JVM takes seconds, and the nemesis has other things
to do meanwhile. It counts as running when it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.client.settings import ClientSettings
from onceflow.verify.brokers import PROCESS_FAULTS, BrokerNode, answers, wait_until_all_answer
from tests.support.apache_kafka import NODE_ID, ApacheKafka
from tests.support.kafka_cluster import ThreeBrokers

__all__ = ["KafkaBrokers", "KafkaClusterBrokers"]

PROBE_S = 1.0


class _Node:
    role = "broker"

    def __init__(self, node_id: int, kafka: ApacheKafka) -> None:
        self.name = f"broker-{node_id}"
        self.id = node_id
        self.kafka = kafka
        self.problems: list[str] = []
        self._is_paused = self._has_answered = self._is_to_end = False

    @property
    def is_running(self) -> bool:
        if not self.kafka.is_alive or self._is_paused or self._is_to_end:
            return False
        if not self._has_answered:
            settings = ClientSettings(bootstrap=self.kafka.bootstrap, timeout_s=PROBE_S)
            self._has_answered = answers(settings, self.id)
        return self._has_answered

    def kill(self) -> None:
        self.look()
        self.kafka.kill()
        self._has_answered = self._is_paused = False

    def stop(self) -> None:
        """Asks for a clean end; `start` waits for it."""
        self.resume()
        self.look()
        self._is_to_end = True
        self.kafka.terminate()

    def pause(self) -> None:
        if self.kafka.is_alive:
            self._is_paused = True
            self.kafka.pause()

    def resume(self) -> None:
        if self._is_paused:
            self.kafka.resume()
            self._is_paused = False

    def start(self) -> None:
        self.look()
        if self._is_to_end:
            self.kafka.stop()
            self._is_to_end = False
        if not self.kafka.is_alive:
            self._has_answered = False
            self.kafka.launch()

    def look(self) -> None:
        """Has it ended by itself? That is remembered, and it can be started again."""
        code = self.kafka.exit_code
        if code is not None and not self._is_to_end:
            self.problems.append(f"{self.name} ended by itself with exit code {code}:\n{self.kafka.log_tail()}")
            self.kafka.kill()


class _ApacheKafkaNodes:
    faults = PROCESS_FAULTS
    disk = None

    def __init__(self, description: str, bootstrap: str, nodes: Mapping[int, ApacheKafka]) -> None:
        self.description = description
        self.bootstrap = bootstrap
        self._nodes = [_Node(node_id, kafka) for node_id, kafka in nodes.items()]

    def nodes(self) -> Sequence[BrokerNode]:
        return self._nodes

    def heal(self) -> None:
        for node in self._nodes:
            node.resume()
            node.start()
        settings = ClientSettings(bootstrap=self.bootstrap, timeout_s=5)
        wait_until_all_answer(settings, [node.id for node in self._nodes])

    def problems(self) -> list[str]:
        for node in self._nodes:
            node.look()
        return [problem for node in self._nodes for problem in node.problems]

    def __enter__(self) -> _ApacheKafkaNodes:
        """They run already, and go on running afterwards: who started them ends them."""
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.resume()


class KafkaBrokers(_ApacheKafkaNodes):
    """One Apache Kafka that was started."""

    def __init__(self, kafka: ApacheKafka) -> None:
        super().__init__("Apache Kafka", kafka.bootstrap, {NODE_ID: kafka})


class KafkaClusterBrokers(_ApacheKafkaNodes):
    """Three that were started."""

    def __init__(self, cluster: ThreeBrokers) -> None:
        super().__init__("Apache Kafka, three brokers", cluster.bootstrap, cluster.nodes)
