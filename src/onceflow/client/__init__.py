"""What our own programs need as clients of a Kafka protocol address, ours or Apache Kafka's.

    addresses    what a bootstrap address looks like, and whether anybody answers there
    settings     from a bootstrap address and a person's wishes to a librdkafka configuration
    problems     librdkafka's errors as sentences
    admin        topics: list, describe, create, delete
    groups       consumer groups: list, describe, move offsets, delete
    security     TLS and SASL as people set them
    tls, sasl    the two of them, for our own connections
    connection   one socket and our own wire layer, for what librdkafka has no function for
    cluster      which broker to ask: coordinators, leaders, all of them
    transactions list, describe, find hanging ones, abort
    watching     how a cluster looks at a moment, by asking (with watch_*: partitions, transactions, groups, progress)

Nothing here knows our broker's classes: the same code runs against an Apache Kafka cluster. confluent_kafka
is slow to import, so functions that need it import it themselves.
"""
