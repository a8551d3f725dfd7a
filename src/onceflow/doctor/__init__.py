"""`onceflow doctor`: what exactly-once needs of a cluster, of a client and of a Spark job, and what is there."""
