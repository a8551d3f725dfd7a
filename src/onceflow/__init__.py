"""Onceflow: end-to-end exactly-once data pipelines in Python.

    import onceflow

    with onceflow.Broker(data_dir="data") as broker:
        print(broker.bootstrap)  # give this to any Kafka client
"""

from onceflow.broker.embedded import Broker

__all__ = ["Broker"]
__version__ = "0.1.0"
