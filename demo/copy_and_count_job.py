"""A Spark job that copies orders and counts them per customer, exactly once.

    python demo/copy_and_count_job.py --bootstrap 127.0.0.1:9092 --checkpoint ./checkpoint

Every micro-batch is one Kafka transaction: its copies, its new counts, and how far the orders were read become visible
together or not at all. Kill it whenever you like and start it again: it goes on where the last transaction ended, and
the counts, which live in Spark's state store, go on with it.

Topics must exist. `demo/spark_copy_and_count.py` runs this job and does the killing.
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as sql

import onceflow.spark


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
    )
    copies = orders.select(sql.lit(args.copies).alias("topic"), "key", "value")
    counted = orders.groupBy("key").count()
    counts = counted.select(
        sql.lit(args.counts).alias("topic"), "key", counted["count"].cast("string").cast("binary").alias("value")
    )

    # No topic= here: each row says where it goes, and one transaction covers both topics.
    sink = onceflow.spark.KafkaSink(app_id=args.app_id, bootstrap_servers=args.bootstrap)
    query = (
        copies.unionByName(counts)
        .writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", args.checkpoint)
        .trigger(availableNow=True)  # up to what is there now; .trigger(processingTime="1 second") goes on for ever
        .start()
    )
    query.awaitTermination()


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
    return parser.parse_args()


if __name__ == "__main__":
    main(arguments())
