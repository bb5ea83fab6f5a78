"""The audit of stores written by a real broker, including its duplicate deliveries."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from tests.support.amounts import sample
from tests.support.broker import fixtures as broker
from tests.support.broker.expected import Expected
from tests.support.disk_reader import LEVEL_TOPIC
from tests.support.spark.jobs import run

FAULTS = ("lost", "duplicated", "early", "phantom", "crc_mismatch", "uncancelled")


NAMES = sorted(broker.names(), key=lambda name: (name != "doubled-by-broker", name))


@pytest.mark.parametrize("name", sample(NAMES, "broker stores"))
def test_audit_finds_duplicates_in_broker_store(spark: Any, tmp_path: Path, name: str) -> None:
    root = broker.unpack(name, tmp_path)
    status, report = run(
        "audit", "--path", root, "--now", "log", "--out", tmp_path / "out", tmp=tmp_path
    )
    found = report["figures"]
    doubled = 81 if name == "doubled-by-broker" else 0
    assert {fault: found[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0) | {
        "duplicated": doubled
    }
    assert status == (2 if doubled else 0)
    expected = Expected.of(name)
    levels = sum(line["topic"] == LEVEL_TOPIC for line in expected.messages)
    assert found["scheduled"] == len(expected.sources) + levels
    assert found["pending"] == len(expected.left)
    wanting = found["cancelled"] + found["pending"] + found["delivered"] - doubled
    assert wanting == found["scheduled"]
    if doubled:
        wrong = spark.read.parquet(str(tmp_path / "out" / "offenders"))
        assert wrong.count() == doubled
        assert wrong.where("mark LIKE 'level%'").count() == 29
