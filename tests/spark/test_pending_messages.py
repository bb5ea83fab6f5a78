"""Pending messages of constructed logs, in agreement with the counts of the audit."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.test_audit_frames import Log, audit, ts_id
from timerstore.spark.jobs import audit_frames as frames
from timerstore.spark.jobs.pending_messages import pending_places, rows_to_put


def places(spark: Any, *logs: Log) -> set[tuple[int, int]]:
    rows = [row for log in logs for row in log.rows]
    messages = spark.createDataFrame(rows, frames.MESSAGE_COLUMNS)
    return {(row[0], row[1] // 100) for row in pending_places(messages).collect()}


def test_pending_places_returns_pending_messages(spark: Any) -> None:
    log, other = Log(), Log(1)
    log.scheduled("waits", 9000)  # record 0
    log.scheduled("delivered", 9000)
    log.delivered("delivered", 9000, 9000)
    log.scheduled("cancelled", 9000, place=3, TS_ID=ts_id(3))
    log.deleted("t+cancelled", 9000, TS_ID=ts_id(3))
    log.scheduled("by a broker", 9000)
    log.deleted("t+by a broker", 9000)
    log.scheduled("rolled", 9000, place=7, TS_ID=ts_id(7))
    log.scheduled("rolled", 9000, place=8, TS_ID=ts_id(7), TIMER_ROLL_TIMES="1")  # record 8
    log.add(frames.LEVEL_TOPIC, "level", 0, 1000, {"REAL_TOPIC": "t", "DELAY": "1"})  # record 9
    other.scheduled("waits", 9000)  # record 0 of shard 1
    assert places(spark, log, other) == {(0, 0), (0, 8), (0, 9), (1, 0)}
    counts = audit(spark, log, other)
    assert counts.get("pending", 0) + counts.get("lost", 0) == 4


def test_latest_of_equal_broker_messages_wait(spark: Any) -> None:
    log = Log()
    for _ in range(4):
        log.scheduled("k", 9000)  # records 0 to 3, a broker's
    log.delivered("k", 9000, 9000)
    log.delivered("k", 9000, 9000)
    assert places(spark, log) == {(0, 2), (0, 3)}


def test_equal_own_messages_wait_when_not_named(spark: Any) -> None:
    log = Log()
    for q in range(4):
        log.scheduled("k", 9000, place=q, TS_ID=ts_id(q))
    log.deleted("t+k", 9000, TS_ID=ts_id(2))
    properties = {"REAL_TOPIC": "t", "TIMER_OUT_MS": "8999", "TS_ID": ts_id(1)}
    log.add("t", "k", 9000, 9000, properties)
    assert places(spark, log) == {(0, 0), (0, 3)}


def test_last_copy_waits_when_source_is_removed(spark: Any) -> None:
    log = Log()
    for times in "12":
        log.scheduled("k", 9000, TIMER_ROLL_TIMES=times)
        log.scheduled("out", 9000, TIMER_ROLL_TIMES=times)
    log.delivered("out", 9000, 9000)
    assert places(spark, log) == {(0, 2)}


def test_rows_to_put_drops_empty_keys_of_broker(spark: Any) -> None:
    columns = (
        "topic string, msg_id binary, key binary, tags string, stored_at long, deliver_at long, "
        "properties map<string,string>, body binary, flags int"
    )
    texts = [b"a  b", b"", b" a ", b"a", None]
    rows = [("t", b"m", one, None, 5, 7, {"REAL_TOPIC": "t"}, b"", 0) for one in texts]
    found = rows_to_put(spark.createDataFrame(rows, columns), [1000]).select("keys").collect()
    assert [row["keys"] for row in found] == [["a", "b"], [], ["a"], ["a"], None]
