"""Orders from Kafka into a database, without Spark. The process dies, and every order counts once.

    python examples/land_without_spark.py                                       SQLite, in a temporary folder
    python examples/land_without_spark.py postgresql://me:secret@localhost/shop PostgreSQL; it makes a table

It needs `pip install 'onceflow[sql]'`; the Kafka is `onceflow.Broker`. What happens:

- `consume_into` calls `sell` with some records and a cursor. What it writes, and the offsets of the records, are one
  transaction.
- The first process is killed (SIGKILL) inside of `sell`, with a part of a transaction written.
- The second one asks the database where to go on.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import uuid

from confluent_kafka import Producer

import onceflow
from onceflow.sinks import consume_into

ORDERS = 10_000


def sell(cursor, records, die_after=None):
    """One transaction. Whoever calls commits."""
    mark = "?" if isinstance(cursor, sqlite3.Cursor) else "%s"
    statement = (
        f"INSERT INTO example_sales VALUES ({mark}, 1, {mark}) ON CONFLICT (product) DO UPDATE "
        "SET orders = example_sales.orders + 1, cents = example_sales.cents + excluded.cents"
    )
    for record in records:
        product, cents = record.key.decode(), int(record.value)
        cursor.execute(statement, [product, cents])
        if die_after is not None and record.offset >= die_after:
            os.kill(os.getpid(), signal.SIGKILL)


def consume(kafka, url, group, die_after=None):
    """Up to what is in the topic now. It would run for ever without `until_now`."""
    consume_into(
        url,
        "orders",
        lambda cursor, records: sell(cursor, records, die_after),
        group=group,
        bootstrap_servers=kafka,
        until_now=True,
        kafka={"session.timeout.ms": 6000},  # how soon Kafka gives the partitions of a dead process to another one
        on_commit=lambda done: print(f"{done.records} records", file=sys.stderr),
    )


def start(*words):
    return subprocess.run([sys.executable, __file__, "consume", *words])


def connected(url):
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    import psycopg

    return psycopg.connect(url, autocommit=True)


def ask(url, question):
    connection = connected(url)
    try:
        return connection.execute(question).fetchone()
    finally:
        connection.close()


def begin_anew(url):
    connection = connected(url)
    connection.execute("DROP TABLE IF EXISTS example_sales")
    connection.execute("CREATE TABLE example_sales (product text PRIMARY KEY, orders bigint, cents bigint)")
    connection.close()


def take_orders(kafka):
    shop = Producer({"bootstrap.servers": kafka})
    for number in range(ORDERS):
        shop.produce("orders", key=f"product-{number % 7}", value=str(number))
    shop.flush()


def main(url, folder):
    group = f"example-{uuid.uuid4()}"  # each run of this example begins anew; a program of yours keeps its name
    begin_anew(url)
    with onceflow.Broker(f"{folder}/kafka") as broker:
        take_orders(broker.bootstrap)
        killed = start(broker.bootstrap, url, group, str(ORDERS // 2))
        assert killed.returncode == -signal.SIGKILL, "the first process should have been killed"
        (at,) = ask(url, f"SELECT next_offset FROM onceflow_offsets WHERE group_id = '{group}'")
        (orders,) = ask(url, "SELECT sum(orders) FROM example_sales")
        print(f"killed in the middle of a transaction: the table has as many orders as the offset says: {orders == at}")
        start(broker.bootstrap, url, group).check_returncode()
    orders, cents = ask(url, "SELECT sum(orders), sum(cents) FROM example_sales")
    print(f"after the second process: {orders:,} orders, {cents:,} cents of {sum(range(ORDERS)):,}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["consume"]:
        _, _, kafka, url, group, *more = sys.argv
        consume(kafka, url, group, int(more[0]) if more else None)
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(sys.argv[1] if sys.argv[1:] else f"sqlite:///{folder}/shop.db", folder)
