"""The same brokers as for `tests/verify`: ours, with faults in it, and Apache Kafka, of which only the network is
struck."""

from tests.verify.conftest import brokers, pytest_generate_tests

__all__ = ["brokers", "pytest_generate_tests"]
