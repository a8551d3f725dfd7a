"""A counter that can be fed twice: it keeps the offset of the last record that it counted, and ignores older ones.

    python examples/counter.py                                       SQLite, in a temporary folder
    python examples/counter.py postgresql://me:secret@localhost/shop PostgreSQL; it makes a table example_views

It needs `pip install 'onceflow[sql]'`; the Kafka is `onceflow.Broker`. There is no transaction around anything here,
and nobody keeps offsets: each pass reads the topic from its beginning, the second only a part of it. A counter that
just adds counts every pass.
"""

import sqlite3
import sys
import tempfile

from confluent_kafka import Consumer, Producer, TopicPartition

import onceflow
from onceflow.sinks import increment

VIEWS = 100
PAGES = 5


def count(cursor, message):
    """Both ways, for comparison. Each statement is committed by itself (autocommit)."""
    page = message.key().decode()
    place = {"partition": message.partition(), "offset": message.offset()}
    increment(cursor, "example_views", key={"page": page}, add={"views": 1}, **place)
    cursor.execute(f"UPDATE example_views SET just_added = just_added + 1 WHERE page = '{page}'")


def read_from_the_beginning(kafka, how_many, cursor):
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "example", "enable.auto.commit": False})
    consumer.assign([TopicPartition("views", 0, 0)])
    for message in consumer.consume(how_many, timeout=30):
        count(cursor, message)
    consumer.close()


def begin_anew(cursor):
    cursor.execute("DROP TABLE IF EXISTS example_views")
    cursor.execute(
        "CREATE TABLE example_views (page text PRIMARY KEY, views bigint NOT NULL, onceflow_partition integer, "
        "onceflow_offset bigint, just_added bigint NOT NULL DEFAULT 0)"
    )


def connected(url):
    """In autocommit mode."""
    if url.startswith("sqlite:///"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    import psycopg

    return psycopg.connect(url, autocommit=True)


def view_pages(kafka):
    readers = Producer({"bootstrap.servers": kafka})
    for number in range(VIEWS):
        readers.produce("views", key=f"page-{number % PAGES}")
    readers.flush()


def main(url):
    connection = connected(url)
    cursor = connection.cursor()
    begin_anew(cursor)
    with onceflow.Broker() as broker:
        view_pages(broker.bootstrap)
        for how_many in (VIEWS, VIEWS // 2, VIEWS):
            read_from_the_beginning(broker.bootstrap, how_many, cursor)
            cursor.execute("SELECT sum(views), sum(just_added) FROM example_views")
            views, just_added = cursor.fetchone()
            print(f"read {how_many:>3} records: {views} views counted; {just_added} by just adding")
    connection.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1] if sys.argv[1:] else f"sqlite:///{folder}/views.db")
