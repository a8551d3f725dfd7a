"""Rows into SQL databases: `SqlSink` beside Spark's own JDBC writer and a bare COPY. See benchmarks/README.md."""
