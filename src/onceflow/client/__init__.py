"""What our own programs need as clients of a Kafka protocol address, ours or Apache Kafka's.

    addresses    what a bootstrap address looks like, and whether anybody answers there
    settings     from a bootstrap address and a person's wishes to a librdkafka configuration
    problems     librdkafka's errors as sentences
    admin        topics: list, describe, create, delete

Nothing here knows our broker's classes: the same code runs against an Apache Kafka cluster. confluent_kafka
is slow to import, so functions that need it import it themselves.
"""
