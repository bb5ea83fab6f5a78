"""The door to Spark: stores, and directories of shards, as a data source named `timerstore`.

    spark.read.format("timerstore").option("table", "deliveries").load("/data/orders.store")

read_options.py  what a reader may be told      plan.py     which parts of which shards are read
offsets.py     positions as JSON              schemas.py  Spark's types of the tables
session.py     register, configure            batch.py    reading once
stream.py      reading on and on              writing.py  writing shards, once and on and on
datasource.py  the data source itself; autoload/ makes Spark find it by its name

Holds:    options, plan, offsets and session need neither pyspark nor a JVM, and neither does
          importing this; a reader in another process is told everything in plain values.
Fails:    errors carry what, where and what to do in their text: Spark keeps no more of them.
"""

from timerstore._engine.snapshot.columns.schemas import TABLES
from timerstore.spark.plan import latest_offsets
from timerstore.spark.session import configure, register

__all__ = ["TABLES", "configure", "latest_offsets", "register"]
