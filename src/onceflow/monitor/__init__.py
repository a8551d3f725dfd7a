"""Watching a cluster: what it looks like at a moment, what was counted, and what follows from it.

    meters.py       what the broker counts while it works
    snapshot.py     how a cluster looks at a moment; made by `broker/watching.py` (our broker, from within) or by
                    `client/watching.py` (any Kafka, by asking)
    micro_batches.py  micro-batches, as the progress records of Spark jobs tell of them
    metrics.py      the table of metrics, and a snapshot in Prometheus' format
    rules.py        the alerts: one table (rules_table.py) for the page, the command and Prometheus' rule file
    watcher.py      snapshots over time: rates, alerts, what the page shows
    http.py, page/  the read-only HTTP side, and the page

Nothing here knows where a snapshot comes from.
"""
