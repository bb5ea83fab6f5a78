"""Find the pending messages of a log, each once, from the log alone.

A message is one source. Its `place` is its timer id, or its queue offset if a broker wrote it.
A delivery or cancel with a TS_ID of timerstore removes the source that it names. A delivery by
a broker removes the earliest source of its identity, and a broker's delete removes all sources that
a broker accepted. Of several copies of a source, the last one in the log is returned.

The functions only plan, and use no sparkContext.

Invariants:
    The result has as many records as the audit counts as pending and lost. An identity of which
    only copies are left gives one record.
See also: audit_frames.py (identity), docs/file-format.md.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from timerstore.spark.jobs.audit_frames import events
from timerstore.spark.jobs.spans import read_span_ms

_IDENTITY = ("shard", "topic", "msg_id", "mark")

# The default levels of RocketMQ. A store with other levels needs the option --level-delays.
LEVEL_DELAYS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

OWN_PROPERTIES = (
    "TIMER_OUT_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_ENQUEUE_MS",
    "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "REAL_TOPIC", "REAL_QID", "DELAY",
    "UNIQ_KEY", "KEYS", "TAGS", "TS_ID", "TS_LEVEL", "TS_GROUP", "__CRC32#",
)  # fmt: skip
"""Properties set by the engine or a broker, not by a producer."""


def pending_places(messages: DataFrame) -> DataFrame:
    """Return (shard, log_offset) of each pending message."""
    found = events(messages)
    s, c, d = (F.col("kind") == kind for kind in "scd")
    own = F.col("own")
    sources = found.groupBy(*_IDENTITY, "place").agg(
        F.max(F.when(s, F.col("log_offset"))).alias("log_offset"),
        F.max(s & (F.col("counts") | own)).alias("is_source"),
        F.max(s & own).alias("is_own"),
        _count((c | d) & own).alias("gone"),
        _count(d & ~own).alias("foreign_deliveries"),
        _count(c & ~own).alias("foreign_deletes"),
    )
    everyone = Window.partitionBy(*_IDENTITY)
    known = (
        sources.withColumn("has_source", F.max("is_source").over(everyone))
        .withColumn("delivered", F.sum("foreign_deliveries").over(everyone))
        .withColumn("deleted", F.sum("foreign_deletes").over(everyone))
        .where(F.col("log_offset").isNotNull() & (F.col("gone") == 0))
        .where(F.col("is_source") | ~F.col("has_source"))
        .where(F.col("is_own") | (F.col("deleted") == 0))
    )
    # A broker delivers the earliest first. If only copies are left, they are one message.
    later = Window.partitionBy(*_IDENTITY).orderBy(F.col("place").desc())
    missing = F.count("*").over(everyone) - F.col("delivered")
    last = F.lit(1) - F.least(F.col("delivered"), F.lit(1))
    kept = known.withColumn("rank", F.row_number().over(later))
    kept = kept.withColumn("left", F.when(F.col("has_source"), missing).otherwise(last))
    return kept.where(F.col("rank") <= F.col("left")).select("shard", "log_offset")


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, F.lit(1)))


def rows_to_put(messages: DataFrame, level_delays_ms: list[int]) -> DataFrame:
    """Convert waiting or delivered records to rows for the writer.

    The columns are topic, message_id, deliver_ms, body, keys, tags, properties and flags. Bit 0 of
    flags marks a compressed body.
    """
    properties = F.col("properties")
    level = F.least(properties["DELAY"].try_cast("int"), F.lit(len(level_delays_ms)))
    delays = F.array(*(F.lit(ms) for ms in level_delays_ms))
    is_level = F.col("topic") == "SCHEDULE_TOPIC_XXXX"
    due = F.when(is_level, F.col("stored_at") + F.element_at(delays, level))
    return messages.select(
        F.coalesce(properties["REAL_TOPIC"], F.col("topic")).alias("topic"),
        F.col("msg_id").cast("string").alias("message_id"),
        F.coalesce("deliver_at", due, "stored_at").cast("long").alias("deliver_ms"),
        "body",
        # A broker accepts keys as one text, possibly empty or with several spaces.
        F.array_remove(F.split(F.col("key").cast("string"), " "), "").alias("keys"),
        F.col("tags"),
        F.map_filter(properties, lambda name, _: ~name.isin(*OWN_PROPERTIES)).alias("properties"),
        F.col("flags"),
    )


def read_level_delays(text: str) -> list[int]:
    """Parse the delays of the fixed levels, written as in StoreConfig.level_delays. Return ms."""
    return [read_span_ms("--level-delays", one) for one in text.split()]
