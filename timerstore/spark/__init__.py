"""The Spark data source `timerstore`: read stores and shard directories, and write to shards.

    spark.read.format("timerstore").option("table", "deliveries").load("/data/orders.store")

| module          | responsibility                                             |
|-----------------|------------------------------------------------------------|
| datasource.py   | the data source class; autoload/ lets Spark find it        |
| read_options.py | parse and check reader options                             |
| plan.py         | divide a read into tasks                                   |
| offsets.py      | stream offsets and `as_of` positions as JSON               |
| schema_map.py   | Spark types of the tables                                  |
| batch.py        | batch reads                                                |
| backup_reader.py | batch reads of a backup in a bucket                       |
| stream.py       | streaming reads                                            |
| writer.py       | batch and streaming writes                                 |
| locations.py    | parse paths and `file:` URLs, also those of jobs           |
| session.py      | `register` and `configure` for a session                   |
| jobs/           | the jobs of the command `timerstore-spark`                 |

Invariants:
    1. Importing this package needs neither pyspark nor a JVM. The same holds for read_options,
       plan, offsets and session.
    2. A task receives plain picklable values only.
Raises: the text of an error contains everything, because Spark passes on only the text.
"""

from timerstore._engine.snapshot.columns.schemas import TABLES
from timerstore.spark.plan import latest_offsets
from timerstore.spark.session import configure, register

__all__ = ["TABLES", "configure", "latest_offsets", "register"]
