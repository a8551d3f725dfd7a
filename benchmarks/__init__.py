"""Onceflow's broker beside Apache Kafka: same machine, same clients, one run. See README.md."""
