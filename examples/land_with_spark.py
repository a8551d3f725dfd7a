"""Orders from Kafka into two tables of a database, with Spark. The driver dies, and every order counts once.

    python examples/land_with_spark.py                                       SQLite, in a temporary folder
    python examples/land_with_spark.py postgresql://me:secret@localhost/shop PostgreSQL; it makes tables example_*

It needs `pip install 'onceflow[spark,sql]'` and Java 17+; the Kafka is `onceflow.Broker`. What happens:

- A micro-batch adds its orders to one table, and what each customer has paid to another: one transaction.
- The first driver is killed (SIGKILL) with the transaction of micro-batch 2 open, right before its COMMIT.
- The second one finds in the database that two micro-batches were committed, and goes on with the third.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile

from confluent_kafka import Producer
from pyspark.sql import functions as sql

import onceflow
import onceflow.spark
from onceflow.sinks import SqlSink, Table

ORDERS = 25_000
PER_BATCH = 5_000


class DieBeforeTheCommitOf(onceflow.spark.SinkListener):
    def __init__(self, batch_id):
        self.batch_id = batch_id

    def before(self, step, batch_id):
        if step is onceflow.spark.Step.COMMIT and batch_id == self.batch_id:
            os.killpg(0, signal.SIGKILL)  # this process and its JVM


def per_customer(orders):
    return orders.groupBy("customer").agg(sql.count("*").alias("orders"), sql.sum("cents").alias("cents"))


def driver(kafka, url, folder, listeners):
    """The job. It would run for ever without the trigger."""
    spark = onceflow.spark.session("example", master="local[2]", quiet=True)
    source = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", kafka).option("subscribe", "orders")
    orders = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", PER_BATCH).load()
    sink = SqlSink(
        url=url,
        app_id="example-orders",
        tables=[
            Table("example_orders", create=True),
            Table("example_customers", key=["customer"], mode="increment", rows=per_customer, create=True),
        ],
        listeners=listeners,
        new_checkpoint="accept",  # each run of this example begins anew; a job of yours leaves this out
    )
    query = (
        orders.selectExpr("string(key) AS customer", "bigint(string(value)) AS cents", "offset", "timestamp")
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
    )
    query.start().awaitTermination()


def start(kafka, url, folder, *more):
    """The driver, in a process group of its own."""
    return subprocess.run([sys.executable, __file__, "driver", kafka, url, folder, *more], start_new_session=True)


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
    for table in ("example_orders", "example_customers"):
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    connection.close()


def take_orders(kafka):
    shop = Producer({"bootstrap.servers": kafka})
    for number in range(ORDERS):
        shop.produce("orders", key=f"customer-{number % 100}", value=str(number))
    shop.flush()


def main(url, folder):
    begin_anew(url)
    with onceflow.Broker(f"{folder}/kafka") as broker:
        take_orders(broker.bootstrap)
        killed = start(broker.bootstrap, url, folder, "die")
        assert killed.returncode == -signal.SIGKILL, "the first driver should have been killed"
        (count,) = ask(url, "SELECT count(*) FROM example_orders")
        print(f"killed before the COMMIT of micro-batch 2: {count:,} orders are there")
        start(broker.bootstrap, url, folder).check_returncode()
    count, different = ask(url, 'SELECT count(*), count(DISTINCT "offset") FROM example_orders')
    orders, cents = ask(url, "SELECT sum(orders), sum(cents) FROM example_customers")
    print(f"after the second driver: {count:,} orders, {different:,} different ones")
    print(f"all customers together: {orders:,} orders, {cents:,} cents of {sum(range(ORDERS)):,}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["driver"]:
        _, _, kafka, url, folder, *more = sys.argv
        driver(kafka, url, folder, [DieBeforeTheCommitOf(2)] if more else [])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(sys.argv[1] if sys.argv[1:] else f"sqlite:///{folder}/shop.db", folder)
