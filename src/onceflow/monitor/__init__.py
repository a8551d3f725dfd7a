"""Watching a cluster: what it looks like at a moment, what was counted, and what follows from it.

    meters.py       what the broker counts while it works
    snapshot.py     how a cluster looks at a moment; made by `broker/watching.py` (our broker, from within) or by
                    `client/watching.py` (any Kafka, by asking)
    micro_batches.py  micro-batches, as the progress records of Spark jobs tell of them
    metrics.py      the table of metrics; samples.py has their values, exposition_text.py writes Prometheus' format
    rules.py        the alerts: one table (rules_table.py) for the page, the command and Prometheus' rule file
    watcher.py      snapshots over time; rates.py and history.py keep what a minute and a quarter of an hour need
    http.py, page/  the read-only HTTP side, and the page; page_state.py is what it is told

Nothing here knows where a snapshot comes from.
"""
