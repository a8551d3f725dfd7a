"""Onceflow: end-to-end exactly-once data pipelines in Python.

    import onceflow

    with onceflow.Broker(data_dir="data") as broker:
        print(broker.bootstrap)  # give this to any Kafka client

The parts: `onceflow.spark`, `onceflow.sinks`, `onceflow.pipelines`, `onceflow.verify`, and the command `onceflow`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceflow.broker.embedded import Broker

__all__ = ["Broker"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`Broker`, loaded when it is first asked for: every command imports this package, few need it."""
    if name == "Broker":
        from onceflow.broker.embedded import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
