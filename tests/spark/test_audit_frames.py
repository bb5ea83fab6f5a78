"""Verdicts of the audit on constructed logs: it finds each fault, and no fault in a clean log."""

from __future__ import annotations

import base64
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from timerstore.spark.jobs import audit_frames as frames

NOW, GRACE = 500_000, 1000


class Log:
    """The log of a shard, built record by record."""

    def __init__(self, shard: int = 0) -> None:
        self.shard = shard
        self.rows: list[tuple[Any, ...]] = []

    def add(
        self, topic: str, key: str, at: int, due: int, properties: dict[str, str], crc: int = 1,
        queue_offset: int | None = None,
    ) -> None:  # fmt: skip
        place = len(self.rows) if queue_offset is None else queue_offset
        self.rows.append(
            (self.shard, topic, place, 100 * len(self.rows), key.encode(), at, due, properties, crc)
        )

    def scheduled(self, key: str, due: int, *, crc: int = 1, **more: Any) -> int:
        """Add a source record. Return its queue offset."""
        place = more.pop("place", len(self.rows))
        properties = {"REAL_TOPIC": "t", "TIMER_OUT_MS": str(due - 1), **more}
        self.add(frames.TIMER_TOPIC, key, 0, due, properties, crc, place)
        return int(place)

    def delivered(self, key: str, due: int, at: int, *, crc: int = 1, topic: str = "t") -> None:
        properties = {"REAL_TOPIC": topic, "TIMER_OUT_MS": str(due - 1)}
        self.add(topic, key, at, due, properties, crc)

    def deleted(self, value: str, due: int, **more: str) -> None:
        properties = {
            "REAL_TOPIC": "t",
            "TIMER_OUT_MS": str(due - 1),
            "TIMER_DEL_UNIQKEY": value,
            **more,
        }
        self.add(frames.TIMER_TOPIC, "delete", 0, due, properties)


def ts_id(q: int, store: int = 7) -> str:
    return base64.urlsafe_b64encode(store.to_bytes(4, "big") + q.to_bytes(8, "big")).decode()


def audit(spark: SparkSession, *logs: Log, is_whole: bool = True) -> dict[str, int]:
    """Return all counts that are not 0."""
    rows = [row for log in logs for row in log.rows]
    messages = spark.createDataFrame(rows, frames.MESSAGE_COLUMNS)
    judged = frames.verdicts(frames.events(messages), NOW, GRACE, is_whole=is_whole)
    (total,) = (row for row in frames.cube(judged).collect() if row["grouping"] == 31)
    return {name: int(total[name]) for name in frames.COUNTS if total[name]}


def clean(count: int = 20) -> Log:
    log = Log()
    for k in range(count):
        log.scheduled(f"k{k}", 1000 * k + 1)
    for k in range(count):
        log.delivered(f"k{k}", 1000 * k + 1, 1000 * k + 1 + k)
    return log


def test_clean_log_has_no_faults(spark: SparkSession) -> None:
    log = clean()
    log.scheduled("far", NOW + 1)
    log.add("t", "direct", 5, 5, {"UNIQ_KEY": "direct"})
    assert audit(spark, log) == {"scheduled": 21, "delivered": 20, "pending": 1}


def test_each_planted_fault_is_counted(spark: SparkSession) -> None:
    log = clean()
    log.scheduled("lost", 9000)
    log.scheduled("early", 9000)
    log.delivered("early", 9000, 8999)
    log.delivered("k4", 4001, 4999)
    log.delivered("k4", 4001, 5000)
    log.delivered("phantom", 9000, 9001)
    log.scheduled("altered", 9000, crc=5)
    log.delivered("altered", 9000, 9001, crc=6)
    assert audit(spark, log) == {
        "scheduled": 23, "delivered": 25, "lost": 1, "early": 1, "duplicated": 2, "phantom": 1,
        "crc_mismatch": 1,
    }  # fmt: skip


def test_grace_separates_late_from_lost(spark: SparkSession) -> None:
    log = Log()
    for due in (NOW - GRACE - 1, NOW - GRACE, NOW):
        log.scheduled(f"k{due}", due)
    assert audit(spark, log) == {"scheduled": 3, "lost": 1, "pending": 2}


def test_identity_includes_topic_shard_and_slot(spark: SparkSession) -> None:
    log, other = Log(), Log(1)
    log.scheduled("k", 1000)
    log.scheduled("k", 2000)
    log.scheduled("k", 1000, REAL_TOPIC="u")
    other.scheduled("k", 1000)
    log.delivered("k", 1000, 1000)
    log.delivered("k", 1000, 1000, topic="u")
    other.delivered("k", 1000, 1000)
    assert audit(spark, log, other) == {"scheduled": 4, "delivered": 3, "lost": 1}
    other.delivered("k", 1000, 1001)  # does not compensate for the lost message
    assert audit(spark, log, other) == {"scheduled": 4, "delivered": 4, "lost": 1, "duplicated": 1}


def test_equal_messages_are_counted(spark: SparkSession) -> None:
    log = Log()
    for _ in range(3):
        log.scheduled("k", 1000)
    log.delivered("k", 1000, 1000)
    log.delivered("k", 1000, 1000)
    assert audit(spark, log) == {"scheduled": 3, "delivered": 2, "lost": 1}
    for _ in range(2):
        log.delivered("k", 1000, 1000)
    assert audit(spark, log) == {"scheduled": 3, "delivered": 4, "duplicated": 1}


def test_copies_of_a_message_count_once(spark: SparkSession) -> None:
    log = Log()
    q = log.scheduled("ours", 9000, place=5, TS_ID=ts_id(5))
    log.scheduled("ours", 9000, place=6, TS_ID=ts_id(q), TIMER_ROLL_TIMES="1")
    log.scheduled("ours", 9000, place=7, TS_ID=ts_id(q))  # moved by retention
    log.scheduled("brokers", 9000)
    log.scheduled("brokers", 9000, TIMER_ROLL_TIMES="1")
    log.scheduled("brokers", 9000, TIMER_ROLL_TIMES="2")
    assert audit(spark, log) == {"scheduled": 2, "lost": 2}
    log.delivered("ours", 9000, 9000)
    log.delivered("brokers", 9000, 9000)
    assert audit(spark, log) == {"scheduled": 2, "delivered": 2}


def test_copies_count_as_one_message_when_source_is_removed(spark: SparkSession) -> None:
    log = Log()
    log.scheduled("k", 9000, place=50, TS_ID=ts_id(3), TIMER_ROLL_TIMES="1")
    log.scheduled("k", 9000, place=51, TS_ID=ts_id(3), TIMER_ROLL_TIMES="2")
    assert audit(spark, log) == {"scheduled": 1, "lost": 1}


def test_cancelled_messages_are_not_lost(spark: SparkSession) -> None:
    log = Log()
    log.scheduled("ours", 9000, place=5, TS_ID=ts_id(5))
    log.deleted("t+ours", 9000, TS_ID=ts_id(5))
    log.scheduled("brokers", 9000)
    log.scheduled("brokers", 9000)
    log.deleted("t+brokers", 9000)
    log.scheduled("bare", 9000)
    log.deleted("bare", 9000)
    log.scheduled("k+k", 9000)
    log.deleted("t+k+k", 9000)
    assert audit(spark, log) == {"scheduled": 5, "cancelled": 5}


def test_cancel_leaves_other_messages(spark: SparkSession) -> None:
    log = Log()
    log.scheduled("a", 9000)
    log.scheduled("b", 9000)
    log.deleted("t+a", 8000)  # of another slot
    log.deleted("u+b", 9000)  # of another topic
    assert audit(spark, log) == {"scheduled": 2, "lost": 2}


def test_message_put_again_after_cancel_counts_twice(spark: SparkSession) -> None:
    log = Log()
    log.scheduled("k", 9000, place=5, TS_ID=ts_id(5))
    log.deleted("t+k", 9000, TS_ID=ts_id(5))
    log.scheduled("k", 9000, place=7, TS_ID=ts_id(7))
    log.delivered("k", 9000, 9000)
    assert audit(spark, log) == {"scheduled": 2, "delivered": 1, "cancelled": 1}


def test_delivered_after_cancel_counts_as_uncancelled(spark: SparkSession) -> None:
    log = Log()
    log.scheduled("k", 9000, place=5, TS_ID=ts_id(5))
    log.deleted("t+k", 9000, TS_ID=ts_id(5))
    log.delivered("k", 9000, 9000)
    assert audit(spark, log) == {"scheduled": 1, "delivered": 1, "uncancelled": 1}
    log.delivered("k", 9000, 9000)
    assert audit(spark, log) == {
        "scheduled": 1, "delivered": 2, "uncancelled": 1, "duplicated": 1,
    }  # fmt: skip


def test_level_messages_are_counted(spark: SparkSession) -> None:
    log = Log()
    for key in ("a", "b", "c"):
        log.add(frames.LEVEL_TOPIC, key, 0, 1000, {"REAL_TOPIC": "t", "DELAY": "1"})
    for key in ("a", "b", "b"):
        log.add("t", key, 1000, 1000, {"REAL_TOPIC": "t", "DELAY": "1"})
    assert audit(spark, log) == {"scheduled": 3, "delivered": 3, "lost": 1, "duplicated": 1}


def test_consumer_retry_of_timer_counts_as_level_message(spark: SparkSession) -> None:
    log = Log()
    log.scheduled("k", 1000)
    log.delivered("k", 1000, 1000)
    retry = {"REAL_TOPIC": "t", "DELAY": "3", "TIMER_OUT_MS": "999"}
    log.add(frames.LEVEL_TOPIC, "k", 1500, 2500, retry)
    log.add("t", "k", 2500, 2500, retry)
    assert audit(spark, log) == {"scheduled": 2, "delivered": 2}


def test_delivery_without_source_is_sourceless_when_log_is_truncated(spark: SparkSession) -> None:
    log = clean()
    log.delivered("old", 9000, 9000)
    assert audit(spark, log)["phantom"] == 1
    assert audit(spark, log, is_whole=False) == {
        "scheduled": 20, "delivered": 21, "sourceless": 1,
    }  # fmt: skip


def test_figures_by_group_and_exact_percentiles(spark: SparkSession) -> None:
    log = Log()
    for k in range(1000):
        log.scheduled(f"k{k}", 10_000)
        log.delivered(f"k{k}", 10_000, 10_000 + k)
    messages = spark.createDataFrame(log.rows, frames.MESSAGE_COLUMNS)
    rows = frames.cube(frames.verdicts(frames.events(messages), NOW, GRACE)).collect()
    by = {row["grouping"]: row for row in rows if row["grouping"] != 30}
    assert set(by) == {31, 15, 23, 27, 29}
    for row in by.values():
        assert row["percentiles"] == pytest.approx([499.5, 989.01, 998.001, 999.0])
    steps = {row["step"]: row["times"] for row in rows if row["grouping"] == 30}
    assert (steps[0], steps[1], steps[2], steps[5]) == (1, 1, 1, 3)
    assert (steps[500], steps[1000]) == (300, 499)
    assert sum(steps.values()) == 1000


def test_audit_against_table_compares_all_shards(spark: SparkSession) -> None:
    log, other = Log(), Log(1)
    meant = [("t", key, 1000) for key in (b"a", b"b", b"c", b"gone", b"moved", b"by a broker")]
    table = spark.createDataFrame(meant, "topic string, msg_id binary, due_ms long")
    log.scheduled("a", 1000)
    log.delivered("a", 1000, 1000)
    other.delivered("a", 1000, 1000)  # is in two shards
    other.add("t", "b", 1500, 1500, {})  # was due when it was put
    log.scheduled("c", 1000)
    log.deleted("t+c", 1000, TS_ID=ts_id(5))
    log.delivered("stranger", 1000, 1000)
    log.scheduled("moved", 1000, place=50, TS_ID=ts_id(50))
    log.deleted("t+moved", 1000, TS_ID=ts_id(50))
    log.scheduled("moved", 1500, place=51, TS_ID=ts_id(51))
    log.delivered("moved", 1500, 1500)
    log.scheduled("by a broker", 1000)
    log.deleted("t+by a broker", 1000)
    messages = spark.createDataFrame(log.rows + other.rows, frames.MESSAGE_COLUMNS)
    events = frames.events_against_table(messages, table)
    judged = frames.verdicts(events, NOW, GRACE, by_shard=False)
    (total,) = (row for row in frames.cube(judged).collect() if row["grouping"] == 31)
    found = {name: int(total[name]) for name in frames.COUNTS if total[name]}
    assert found == {
        "scheduled": 6, "delivered": 5, "cancelled": 2, "lost": 1, "duplicated": 1, "phantom": 1,
    }  # fmt: skip
    wrong = {bytes(row["msg_id"]) for row in frames.offenders(judged).collect()}
    assert wrong == {b"a", b"gone", b"stranger"}
