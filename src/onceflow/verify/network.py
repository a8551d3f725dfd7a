"""A proxy before every node of a Kafka: the network that the nemesis has its hand on.

    with Network("kafka-1:9092") as network:
        producer = Producer({"bootstrap.servers": network.bootstrap})
        network.strike("lost answer", api=26)

Works with any Kafka, one node or many, without a change to its configuration: the proxies replace the addresses in its
answers (`verify.rewriting`) by their own, so clients that begin at `network.bootstrap` never find the way around. What
nodes say to each other does not pass here.

- Each node has one proxy, at one port, as long as the network is there: over restarts of the node and changes of its
  address. A node that joins later gets its proxy when an answer first names it.
- TLS cannot be read by anybody in between: a Kafka that is spoken to with it gets no network (`why_not`).
- A login passes (SASL_PLAINTEXT), if it is not bound to the name of the host as GSSAPI is.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Final

from onceflow.client.addresses import Address
from onceflow.client.cluster import Cluster
from onceflow.client.security import SECURITY_SETTINGS
from onceflow.client.settings import ClientSettings
from onceflow.errors import ConfigError
from onceflow.verify.fates import Frame
from onceflow.verify.lossy_proxy import LossyProxy
from onceflow.verify.rewriting import rewritten
from onceflow.verify.trouble import Strike, Trouble

__all__ = ["Network", "why_not"]

ASK_TIMEOUT_S: Final = 15.0


def why_not(bootstrap: str, client_config: Mapping[str, str]) -> str | None:
    """Why there can be no network before this Kafka; None if there can."""
    protocol = _scheme(bootstrap) or client_config.get("security.protocol") or "PLAINTEXT"
    if protocol.upper().endswith("SSL"):
        return "connections are encrypted (TLS), and nobody in between can read where a request begins"
    return None


def _scheme(bootstrap: str) -> str:
    """`SASL_PLAINTEXT://kafka:9092` says how to connect, the same for all addresses."""
    return bootstrap.partition("://")[0].strip() if "://" in bootstrap else ""


class Network:
    """The proxies before all nodes of the Kafka at `bootstrap`. `seed` decides what strikes leave to chance.

    Raises `ConfigError` if there can be none, and `ClientError` on entering if the Kafka does not answer.
    """

    def __init__(
        self,
        bootstrap: str,
        client_config: Mapping[str, str] | None = None,
        *,
        seed: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        config = client_config or {}
        if reason := why_not(bootstrap, config):
            raise ConfigError(f"There can be no faults of the network: {reason}.")
        security = {name: value for name, value in config.items() if name in SECURITY_SETTINGS}
        self._settings = ClientSettings(bootstrap=bootstrap, extra=security, timeout_s=ASK_TIMEOUT_S)
        self._scheme = _scheme(bootstrap)
        self._host = host
        self._trouble = Trouble(seed)
        self._lock = threading.Lock()
        self._proxies: dict[int, LossyProxy] = {}
        self._open = ExitStack()
        self._is_closed = False

    def __enter__(self) -> Network:
        with ExitStack() as undo:
            undo.callback(self.close)
            with Cluster(self._settings) as cluster:
                for node in cluster.nodes():
                    self._locate(node.id, node.address)
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._trouble.cancel_all()
        self._open.close()

    @property
    def bootstrap(self) -> str:
        """For clients: the proxies of all nodes that are known by now."""
        prefix = f"{self._scheme}://" if self._scheme else ""
        return ",".join(prefix + proxy.address for proxy in self.nodes.values())

    @property
    def nodes(self) -> dict[int, LossyProxy]:
        """The proxies, by the ids of their nodes."""
        with self._lock:
            return dict(sorted(self._proxies.items()))

    def count(self, counter: str) -> int:
        """The sum of one of the proxies' `Counters`."""
        return sum(getattr(proxy.counters, counter) for proxy in self.nodes.values())

    # What can go wrong

    def strike(self, kind: str, **rest: Any) -> Strike:
        """Spoils the next frame that fits, on any node: see `Trouble.strike`."""
        return self._trouble.strike(kind, **rest)

    def cut_all(self, nodes: Collection[int] | None = None) -> int:
        """Cuts every connection there is and says how many those were."""
        return sum(proxy.cut_all() for proxy in self._chosen(nodes))

    def delay(self, seconds: float, nodes: Collection[int] | None = None) -> None:
        """Every frame waits so long, until `heal`."""
        self._trouble.delay(seconds, nodes)

    def partition(self, nodes: Collection[int] | None = None) -> None:
        """Nothing passes, and nobody is told, until `heal`: connections stay open, new ones are accepted and silent."""
        for proxy in self._chosen(nodes):
            proxy.freeze()

    def refuse(self, nodes: Collection[int] | None = None) -> None:
        """Connections are cut and new ones closed at once, until `heal`."""
        for proxy in self._chosen(nodes):
            proxy.refuse()

    def empty(self, nodes: Collection[int] | None = None) -> None:
        """Every Fetch is answered without records, until `heal`."""
        self._trouble.empty(nodes)

    @property
    def emptied(self) -> int:
        """How many answers have lost records so far."""
        return self.count("responses_emptied")

    def heal(self) -> None:
        """Ends delays, empty answers, partitions and refusals. A strike that still waits is for its owner to cancel."""
        self._trouble.end_delays()
        self._trouble.end_empty()
        if self._is_closed:
            return
        for proxy in self._chosen(None):
            proxy.resume()

    def _chosen(self, nodes: Collection[int] | None) -> list[LossyProxy]:
        return [proxy for node, proxy in self.nodes.items() if nodes is None or node in nodes]

    # Where clients are sent

    def _rewrite(self, frame: Frame, response: bytes) -> bytes:
        return rewritten(frame, response, self._locate)

    def _locate(self, node: int, address: Address) -> Address:
        """The proxy before this node, which is at this address now. Called in the threads of the proxies.

        Nobody who holds the lock waits for a proxy that is running, or two threads would wait for each other.
        """
        with self._lock:
            if node not in self._proxies:
                self._add(node)
            proxy = self._proxies[node]
            proxy.upstream = address
        return Address(proxy.host, proxy.port)

    def _add(self, node: int) -> None:
        if self._is_closed:
            raise ConnectionAbortedError("The network is being closed.")
        proxy = LossyProxy(plan=self._trouble.plan(node), rewrite=self._rewrite, host=self._host)
        self._proxies[node] = self._open.enter_context(proxy)
