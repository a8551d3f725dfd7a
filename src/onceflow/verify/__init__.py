"""Proofs by trouble: real clients and brokers under faults, the history of what they did, and a verdict on it.

    runner        a run from beginning to end: workload, faults, healing, the final read, the verdict
    history       every operation with its beginning and its outcome, and everything that was read
    anomalies     what exactly-once forbids, a function each
    nemesis       which faults there are, and when they strike
    workloads     what is run under faults; `programs` are its worker processes
    network       a proxy before every node of a Kafka; `brokers` what can be done to brokers
    report        the page and the JSON
    simulation    the same judge over our broker's core, in memory and under one seed

Only `brokers`, `faulty_broker` and `simulation` know our broker's classes: all else speaks to an address, ours
or Apache Kafka's.
"""
