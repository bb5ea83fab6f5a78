"""Compare the scheduled messages in a store's log with the delivered ones, as Spark plans.

    messages ---> events: one row per record that schedules, cancels or delivers
    a table  -----^  (optional: replaces the log as the source of scheduled messages)
    events   ---> verdicts: one row per identity, with counts ---> figures, offenders

An identity is (shard, topic, message id, mark). The mark is the slot time of a timer, or the level
of a fixed delay. Every copy of a message has all four. These records schedule or cancel:

| record in the timer topic                       | counts as                                   |
|-------------------------------------------------|---------------------------------------------|
| not rolled, without TS_ID or with its own TS_ID | one message                                 |
| rolled, or moved (TS_ID of another record)      | nothing, or one message if no other record  |
|                                                 | of its identity is left                     |
| TIMER_DEL_UNIQKEY with a TS_ID of timerstore    | a cancel of one message of the identity     |
| TIMER_DEL_UNIQKEY written by a broker           | a cancel of all messages of the identity    |
|                                                 | that a broker accepted                      |

Every record with TIMER_OUT_MS or DELAY in a real topic is a delivery. The audit does not read the
engine's own state (its state file and folded state), so that an engine error cannot hide itself.

With a table the mark is empty. An identity is then (topic, message id) over all shards, so that a
message stored in two shards is reported as duplicated.

The functions only plan, and use no sparkContext.

Invariants:
    1. Each message counts as exactly one of cancelled, delivered, pending and lost.
    2. If n equal messages are late one after another, only the lateness of the last one counts.
    3. A delete by key without a topic (RocketMQ up to 5.3.1) applies to the topic it was sent to.
    4. Messages without an id count as one identity with n copies.
    5. With a table, a rescheduled message is early or late relative to the time in the table.
See also: docs/file-format.md, docs/exactly-once.md.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual alias

TIMER_TOPIC = "rmq_sys_wheel_timer"
LEVEL_TOPIC = "SCHEDULE_TOPIC_XXXX"

MESSAGE_COLUMNS = (
    "shard int, topic string, queue_offset long, log_offset long, msg_id binary, stored_at long, "
    "deliver_at long, properties map<string,string>, body_crc int"
)
"""The columns of the table `messages` that `events` reads, with time_type=long."""

PROPERTIES = (
    "REAL_TOPIC", "TIMER_OUT_MS", "DELAY", "TIMER_DEL_UNIQKEY", "TS_ID", "TIMER_ROLL_TIMES",
)  # fmt: skip
"""The properties that `events` reads."""

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

COUNTS = (
    "scheduled", "delivered", "cancelled", "pending", "lost", "duplicated", "early", "phantom",
    "crc_mismatch", "uncancelled", "sourceless",
)  # fmt: skip
"""The counts of a verdict. An offender is an identity with one of FAULTS."""

FAULTS = ("lost", "duplicated", "early", "phantom", "crc_mismatch", "uncancelled")

STEPS_MS = (
    0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000, 2 * 60_000,
    5 * 60_000, 10 * 60_000, 30 * 60_000, HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS,
)  # fmt: skip
"""Steps of lateness. A delivery counts in the first step that is not below its lateness."""

GROUPINGS = {"all": 31, "shard": 15, "topic": 23, "hour": 27, "day": 29, "step": 30}
"""The groupings of `cube`, as values of Spark's grouping_id over its five columns."""

PERCENTILES = {
    "lateness_p50_ms": 0.5,
    "lateness_p99_ms": 0.99,
    "lateness_p99_9_ms": 0.999,
    "lateness_max_ms": 1.0,
}


def events(messages: DataFrame) -> DataFrame:
    """Return one row per record that schedules (s), cancels (c) or delivers (d) a message."""
    has = F.col("properties")
    is_timer = F.col("topic") == TIMER_TOPIC
    is_level = F.col("topic") == LEVEL_TOPIC
    known = messages.select(
        "shard",
        (is_timer | is_level).alias("waits"),
        is_level.alias("in_level"),
        "topic",
        "queue_offset",
        "log_offset",
        "msg_id",
        "stored_at",
        "deliver_at",
        "body_crc",
        has["REAL_TOPIC"].alias("real_topic"),
        has["TIMER_OUT_MS"].alias("out_ms"),
        has["DELAY"].alias("level"),
        has["TIMER_DEL_UNIQKEY"].alias("deletes"),
        has["TS_ID"].alias("ts_id"),
        F.coalesce(has["TIMER_ROLL_TIMES"].try_cast("int"), F.lit(0)).alias("rolls"),
    )
    is_delivery = F.col("real_topic").isNotNull() & _mark(F.col("in_level")).isNotNull()
    chosen = known.where(F.col("waits") | is_delivery)
    is_cancel = F.col("waits") & F.col("deletes").isNotNull()
    kind = F.when(is_cancel, F.lit("c")).when(F.col("waits"), F.lit("s")).otherwise(F.lit("d"))
    named_topic = F.substring_index("deletes", "+", 1)
    has_topic = F.col("deletes").contains("+")
    topic = (
        F.when(is_cancel & has_topic, named_topic)
        .when(F.col("waits"), F.coalesce("real_topic", "topic"))
        .otherwise(F.col("topic"))
    )
    deleted_key = F.when(
        has_topic, F.expr("substr(deletes, length(substring_index(deletes, '+', 1)) + 2)")
    )
    key = F.when(is_cancel, F.coalesce(deleted_key, F.col("deletes")).cast("binary")).otherwise(
        F.col("msg_id")
    )
    is_source = (F.col("rolls") == 0) & (
        F.col("ts_id").isNull() | (_timer_id(F.col("ts_id")) == F.col("queue_offset"))
    )
    return chosen.select(
        "shard",
        topic.alias("topic"),
        key.alias("msg_id"),
        _mark(F.col("in_level")).alias("mark"),
        kind.alias("kind"),
        F.col("ts_id").isNotNull().alias("own"),
        F.coalesce(_timer_id(F.col("ts_id")), F.col("queue_offset")).alias("place"),
        F.col("log_offset"),
        F.when(is_cancel, F.col("rolls") == 0).otherwise(is_source).alias("counts"),
        F.col("deliver_at").alias("due_ms"),
        F.col("stored_at").alias("at_ms"),
        F.col("body_crc").alias("crc"),
    )


def _mark(is_level: Column) -> Column:
    """Return the slot time or the level. A record with both has waited for a level last."""
    level = F.concat(F.lit("level "), F.col("level"))
    return F.when(is_level, level).otherwise(F.coalesce(level, F.col("out_ms")))


def _timer_id(text: Column) -> Column:
    """Return the low 48 bits of a TS_ID (native/format/timer_id.h) as a number."""
    low = F.unbase64(F.translate(F.substring(text, 9, 8), "-_", "+/"))
    return F.conv(F.hex(low), 16, 10).cast("long")


def events_of_table(table: DataFrame) -> DataFrame:
    """Return events for a table with topic, msg_id (binary), due_ms and, if present, crc."""
    crc = F.col("crc").cast("int") if "crc" in table.columns else F.lit(None).cast("int")
    return table.select(
        F.lit(None).cast("int").alias("shard"),
        "topic",
        F.col("msg_id").cast("binary").alias("msg_id"),
        F.lit("").alias("mark"),
        F.lit("s").alias("kind"),
        F.lit(True).alias("own"),
        F.lit(True).alias("counts"),
        F.col("due_ms").cast("long").alias("due_ms"),
        F.lit(None).cast("long").alias("at_ms"),
        crc.alias("crc"),
    )


def events_against_table(messages: DataFrame, table: DataFrame) -> DataFrame:
    """Return events from the table, the cancels of the log, and all messages in the table's topics.

    A message of the table may have been due when it was put. It was then delivered at once.
    """
    from_log = events(messages).where("kind <> 'd'").drop("place", "log_offset")
    is_cancel = F.col("kind") == "c"
    from_log = (
        from_log.withColumn("mark", F.lit(""))
        .withColumn("kind", F.when(is_cancel, F.lit("c")).otherwise(F.lit("r")))
        .withColumn("own", F.lit(True))
    )
    topics = F.broadcast(table.select("topic").distinct())
    delivered = messages.join(topics, "topic", "left_semi").select(
        "shard",
        "topic",
        "msg_id",
        F.lit("").alias("mark"),
        F.lit("d").alias("kind"),
        F.lit(True).alias("own"),
        F.lit(True).alias("counts"),
        F.col("deliver_at").alias("due_ms"),
        F.col("stored_at").alias("at_ms"),
        F.col("body_crc").alias("crc"),
    )
    return events_of_table(table).unionByName(from_log).unionByName(delivered)


_KINDS_OF_RECORD = "scdr"
_OWN, _COUNTS = 0b0100, 0b1000


def _does() -> Column:
    """Encode a record as a number: its kind in the two low bits, then `own` and `counts`."""
    number = F.lit(0)
    for at, kind in enumerate(_KINDS_OF_RECORD):
        number = F.when(F.col("kind") == kind, at).otherwise(number)
    own = F.when(F.col("own"), _OWN).otherwise(0)
    return number + own + F.when(F.col("counts"), _COUNTS).otherwise(0)


def verdicts(
    found: DataFrame, now_ms: int, grace_ms: int, *, by_shard: bool = True, is_whole: bool = True
) -> DataFrame:
    """Return one row per identity: counts of scheduled, cancelled and delivered, and its faults.

    `is_whole`: retention has not removed the beginning of the log. Otherwise a delivery without
    a source counts as `sourceless`, not as a phantom.
    """
    identity = ["shard", "topic", "msg_id", "mark"] if by_shard else ["topic", "msg_id", "mark"]
    shard = [] if by_shard else [F.max("shard").alias("shard")]
    # The shuffle gets one number per record. Aggregating before it saves nothing: most identities
    # have one or two records, which are far apart in the log.
    does = F.col("does")
    s, c, d, r = (does.bitwiseAND(0b11) == number for number in range(len(_KINDS_OF_RECORD)))
    own, counts = does.bitwiseAND(_OWN) > 0, does.bitwiseAND(_COUNTS) > 0
    columns = ("shard", "topic", "msg_id", "mark", "due_ms", "at_ms", "crc")
    compact = found.select(*columns, _does().alias("does")).repartition(*identity)

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, F.lit(1)))

    groups = compact.groupBy(*identity).agg(
        *shard,
        F.greatest(count(s & counts), F.least(count(s), F.lit(1))).alias("scheduled"),
        count(s & counts & ~own).alias("foreign"),
        count(c & counts & own).alias("own_deletes"),
        count(c & ~own).alias("foreign_deletes"),
        count(r & counts).alias("in_log"),
        count(d).alias("deliveries"),
        F.coalesce(F.min(F.when(s, F.col("due_ms"))), F.min(F.when(d, F.col("due_ms")))).alias(
            "due_ms"
        ),
        F.min(F.when(d, F.col("at_ms"))).alias("first_ms"),
        F.max(F.when(d, F.col("at_ms"))).alias("last_ms"),
        F.min(F.when(s, F.col("crc"))).alias("crc_low"),
        F.max(F.when(s, F.col("crc"))).alias("crc_high"),
        F.min(F.when(d, F.col("crc"))).alias("delivered_crc_low"),
        F.max(F.when(d, F.col("crc"))).alias("delivered_crc_high"),
    )
    deleted = F.col("own_deletes") + F.when(
        F.col("foreign_deletes") > 0, F.col("foreign")
    ).otherwise(0)
    # A reschedule is a cancel and a second put.
    again = F.greatest(F.col("in_log") - F.col("scheduled"), F.lit(0))
    net = F.greatest(deleted - again, F.lit(0))
    counted = groups.withColumn("deletes", F.least("scheduled", net))
    counted = counted.withColumn(
        "over", F.col("deliveries") - (F.col("scheduled") - F.col("deletes"))
    )
    return _judged(counted, now_ms, grace_ms, is_whole=is_whole)


def _judged(counted: DataFrame, now_ms: int, grace_ms: int, *, is_whole: bool) -> DataFrame:
    """Return the verdict on each identity."""
    known = F.col("scheduled") > 0
    over = F.greatest(F.col("over"), F.lit(0))
    uncancelled = F.when(known, F.least(over, F.col("deletes"))).otherwise(0)
    missing = F.greatest(-F.col("over"), F.lit(0))
    is_due = F.col("due_ms") + F.lit(grace_ms) < F.lit(now_ms)
    stray = F.when(known, 0).otherwise(F.col("deliveries"))
    counted_ms = F.when(F.col("over") <= 0, F.col("last_ms")).otherwise(F.col("first_ms"))
    late_ms = F.when(counted_ms.isNotNull(), F.greatest(counted_ms - F.col("due_ms"), F.lit(0)))
    altered = (F.col("delivered_crc_low") < F.col("crc_low")) | (
        F.col("delivered_crc_high") > F.col("crc_high")
    )
    return counted.select(
        "shard",
        "topic",
        "msg_id",
        "mark",
        "due_ms",
        "first_ms",
        "last_ms",
        "scheduled",
        F.col("deliveries").alias("delivered"),
        (F.col("deletes") - uncancelled).alias("cancelled"),
        F.when(is_due, 0).otherwise(missing).alias("pending"),
        F.when(is_due, missing).otherwise(0).alias("lost"),
        F.when(known, over - uncancelled).otherwise(0).alias("duplicated"),
        F.coalesce(F.col("first_ms") < F.col("due_ms"), F.lit(False)).cast("int").alias("early"),
        (stray if is_whole else F.lit(0)).alias("phantom"),
        F.coalesce(altered, F.lit(False)).cast("int").alias("crc_mismatch"),
        uncancelled.alias("uncancelled"),
        (F.lit(0) if is_whole else stray).alias("sourceless"),
        late_ms.alias("lateness_ms"),
    )


def offenders(judged: DataFrame) -> DataFrame:
    """Return the identities with a fault."""
    return judged.where(reduce(Column.__or__, (F.col(name) > 0 for name in FAULTS)))


def cube(judged: DataFrame) -> DataFrame:
    """Return all figures in one pass: in total, and by shard, topic, hour, day and lateness step.

    The first aggregation groups by lateness with shard and topic, or by lateness with hour. It has
    few groups, so that almost nothing is shuffled, and all other figures follow from it.
    Percentiles are exact, because they are weighted by the number of deliveries of each lateness.
    """
    names = ("shard", "topic", "hour", "lateness_ms")
    shard, topic, hour, lateness = (F.col(name) for name in names)
    small = (
        judged.withColumn("hour", F.floor(F.col("due_ms") / HOUR_MS))
        .groupingSets([[shard, topic, lateness], [hour, lateness]], shard, topic, hour, lateness)
        .agg(
            F.grouping("hour").alias("by_place"),
            *(F.sum(name).alias(name) for name in COUNTS),
            F.count("first_ms").alias("times"),
        )
    )
    weighed = [F.lit(one) for one in PERCENTILES.values()]
    return (
        small.select("lateness_ms", *COUNTS, "times", F.explode(_places()).alias("in"))
        .select("*", "in.*")
        .groupBy("grouping", *_KINDS)
        .agg(
            *(F.sum(name).alias(name) for name in (*COUNTS, "times")),
            F.percentile("lateness_ms", F.array(*weighed), F.col("times")).alias("percentiles"),
        )
    )


_KINDS = {"shard": "int", "topic": "string", "hour": "long", "day": "long", "step": "long"}


def _places() -> Column:
    """Return the groups in which a row of the first aggregation counts."""
    lateness = F.col("lateness_ms")
    edges = F.array(*(F.lit(edge).cast("long") for edge in STEPS_MS))
    step = F.get(F.filter(edges, lambda edge: edge >= lateness), F.lit(0))
    values = {
        "shard": F.col("shard"),
        "topic": F.col("topic"),
        "hour": F.col("hour"),
        "day": F.floor(F.col("hour") / 24),
        "step": F.coalesce(step, F.when(lateness.isNotNull(), STEPS_MS[-1])).cast("long"),
    }

    def place(name: str) -> Column:
        own = (
            (values[one] if one == name else F.lit(None).cast(kind)).alias(one)
            for one, kind in _KINDS.items()
        )
        return F.struct(F.lit(GROUPINGS[name]).alias("grouping"), *own)

    return F.when(
        F.col("by_place") == 1,
        F.array(*(place(name) for name in ("all", "shard", "topic", "step"))),
    ).otherwise(F.array(place("hour"), place("day")))
