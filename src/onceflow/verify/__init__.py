"""Proofs by trouble: inject faults between real clients and a real broker, then count what arrived.

    lossy_proxy    a TCP proxy that loses acknowledgements and cuts connections on the way to a broker

Nothing here knows our broker's classes: what is verified is a Kafka protocol address, ours or Apache Kafka's.
"""
