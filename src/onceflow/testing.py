"""A pytest plugin: the fixture `onceflow_broker`, a real broker for tests, without Docker.

It is found by pytest as soon as onceflow is installed. The broker is started once per test session, on a free port,
with temporary data; give each test topics of its own.

    def test_orders(onceflow_broker):
        producer = Producer({"bootstrap.servers": onceflow_broker.bootstrap})
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from onceflow import Broker

__all__ = ["onceflow_broker"]


@pytest.fixture(scope="session")
def onceflow_broker() -> Iterator[Broker]:
    """A running broker; `onceflow_broker.bootstrap` is its address."""
    # Imported here: the plugin is loaded in every pytest run of the environment, also where nobody asks for it.
    from onceflow import Broker

    with Broker(durability="os") as broker:
        yield broker
