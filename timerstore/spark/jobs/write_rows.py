"""Write the rows of a DataFrame to shards once, with the data source's writer.

Invariants:
    Repeating a write with the same source writes nothing twice.
"""

from pyspark.sql import DataFrame

from timerstore.spark.jobs.inflate_worker import inflate
from timerstore.spark.jobs.job import Run
from timerstore.spark.jobs.scheduling import Root, Scheduled, committed, scheduled_of, take

ROWS = (
    "topic string, message_id string, deliver_ms long, body binary, keys array<string>, "
    "tags string, properties map<string,string>"
)


def write_rows(run: Run, rows: DataFrame, root: Root, source: str) -> Scheduled:
    """Inflate bodies, write the rows, and ingest. `rows` has the columns of ROWS, and flags."""
    known = committed(root, source, 0)
    if known is None:
        whole = rows.mapInArrow(inflate, ROWS)
        options = {
            "path": str(root),
            "write_id": source,
            "shard_by": "key",
            "null_body": "empty",
            "ingest": "none",
        }
        whole.write.format("timerstore").mode("append").options(**options).save()
    found = committed(root, source, 0)
    take(run, run.spark, root)
    return scheduled_of(found, is_replay=known is not None)
