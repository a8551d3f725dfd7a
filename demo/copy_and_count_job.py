"""A Spark job that copies orders and counts them per customer, exactly once.

    python demo/copy_and_count_job.py --bootstrap 127.0.0.1:9092 --checkpoint ./checkpoint

Every micro-batch is one Kafka transaction: its copies, its new counts, and how far the orders were read become visible
together or not at all. Kill it whenever you like and start it again: it goes on where the last transaction ended, and
the counts, which live in Spark's state store, go on with it.

    orders               {"id": "order-17", "key": "customer-3"}
    orders-copied        {"id": "order-17", "key": "customer-3", "txn": "driver.2/5"}
    orders-per-customer  {"state": "customer-3", "n": 4, "txn": "driver.2/5"}

`txn` says who wrote it: the second driver, in micro-batch 5. The job does not need it; the verdict does.

Topics must exist. `demo/spark_copy_and_count.py` runs this job, does the killing, and judges.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as sql

import onceflow.spark
from onceflow.spark import SinkListener
from onceflow.verify.history import Recorder
from onceflow.verify.programs.spark_driver import Chronicle


def main(args: argparse.Namespace) -> None:
    spark = onceflow.spark.session(args.app_id, master=args.master, quiet=True)
    spark.sparkContext.setLogLevel("ERROR")

    orders = (
        spark.readStream.format("onceflow")
        .option("kafka.bootstrap.servers", args.bootstrap)
        .option("subscribe", args.orders)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", args.per_batch)
        .load()
        .select(sql.from_json(sql.col("value").cast("string"), "id STRING, key STRING").alias("order"))
        .select("order.*")
    )
    copies = orders.select(sql.lit(args.copies).alias("topic"), "key", "id")
    counted = orders.groupBy("key").count()
    counts = counted.select(sql.lit(args.counts).alias("topic"), "key", counted["count"].alias("n"))

    # No topic= here: each row says where it goes, and one transaction covers both topics.
    sink = onceflow.spark.KafkaSink(app_id=args.app_id, bootstrap_servers=args.bootstrap, listeners=listeners(args))

    def write(rows: DataFrame, batch_id: int) -> None:
        transaction = sql.lit(f"{args.process}/{batch_id}").alias("txn")
        copy = sql.struct("id", "key", transaction)
        count = sql.struct(sql.col("key").alias("state"), "n", transaction)
        value = sql.when(sql.col("n").isNull(), sql.to_json(copy)).otherwise(sql.to_json(count))
        sink(rows.select("topic", "key", value.alias("value")), batch_id)

    query = (
        copies.unionByName(counts, allowMissingColumns=True)
        .writeStream.outputMode("update")
        .foreachBatch(write)  # without a wish to change the rows at the last moment: .foreachBatch(sink)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)  # up to what is there now; .trigger(processingTime="1 second") goes on for ever
        .start()
    )
    query.awaitTermination()


def listeners(args: argparse.Namespace) -> list[SinkListener]:
    """Who writes down when this driver took over, and each commit that it asked for, with what came of it."""
    return [Chronicle(Recorder(args.history, args.process, args.zero), args.app_id)] if args.history else []


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT")
    parser.add_argument("--checkpoint", required=True, metavar="DIR", help="where Spark keeps its logs and the counts")
    parser.add_argument("--master", default="local[2]", help="of Spark (default: %(default)s)")
    parser.add_argument("--app-id", default="copy-and-count")
    parser.add_argument("--orders", default="orders", metavar="TOPIC")
    parser.add_argument("--copies", default="orders-copied", metavar="TOPIC")
    parser.add_argument("--counts", default="orders-per-customer", metavar="TOPIC")
    parser.add_argument("--per-batch", type=int, default=10_000, metavar="N", help="orders in a micro-batch at most")
    parser.add_argument("--process", default="driver.1", metavar="NAME", help="of this driver (default: %(default)s)")
    parser.add_argument("--history", type=Path, metavar="FILE", help="for what this driver does (default: not kept)")
    parser.add_argument(
        "--zero", type=float, default=0.0, metavar="S", help="monotonic time at which the history begins"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
