"""Numbers and lists in the guides are those of the code."""

import re
from pathlib import Path

import pytest

import timerstore
from tests import promises
from tests.support.inside import staging_head, watermark_magic
from tests.support.snippets import GUIDES, ROOT
from timerstore._engine.base.metrics import COUNTERS, GAUGES, GROUP_GAUGES
from timerstore._engine.format import (
    queue_unit,
    state_sector,
    timer_unit,
    watermark,
    wheel_checks,
    wheel_slot,
)
from timerstore._engine.format.store_paths import Tree
from timerstore._engine.queues import index_file
from timerstore._engine.queues.message_ids import ENTRY_DTYPE
from timerstore._engine.timer.wheel import OPEN_EXTRA_BYTES
from timerstore.cli.command import COMMANDS
from timerstore.cli.exits import READERS, TABLE

_DEFAULT = timerstore.StoreConfig()
_FORMAT = (GUIDES / "file-format.md").read_text()


def _define(header: str, name: str) -> int:
    """Return a number of a C header: as it is written, or of its magic in hex."""
    text = (ROOT / "native" / "format" / header).read_text()
    found = re.search(rf"^#define {name} (?:\(\(int32_t\)\((-?\d+)\)\)|(\d+))", text, re.MULTILINE)
    assert found, name
    return int(found[1] or found[2]) & 0xFFFFFFFF


def _numbers() -> dict[str, str]:
    rows = _FORMAT.split("\n## Numbers\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|$", rows, re.MULTILINE)[1:])


_WANTED: dict[str, object] = {
    "magic of a record, version 1": f"0x{_define('record.h', 'TS_RECORD_MAGIC_V1'):X}",
    "magic of a record, version 2 (topics longer than 127 characters)": (
        f"0x{_define('record.h', 'TS_RECORD_MAGIC_V2'):X}"
    ),
    "magic of a blank, at a segment's end": f"0x{_define('record.h', 'TS_BLANK_MAGIC'):X}",
    "bytes of a record without body, topic and properties": (
        _define("record.h", "TS_RECORD_FIXED_BYTES")
    ),
    "bytes of properties, at most": _DEFAULT.properties_bytes_max,
    "bytes of a queue unit": queue_unit.UNIT_BYTES,
    "bytes of a wheel slot": wheel_slot.SLOT_BYTES,
    "bytes of a timer unit": timer_unit.UNIT_BYTES,
    "bytes that stay free at the end of a timer-log file": timer_unit.BLANK_BYTES,
    "bytes of an index header": index_file.HEADER_BYTES,
    "bytes of an index slot": index_file.SLOT_BYTES,
    "bytes of an index entry": index_file.ENTRY_BYTES,
    "bytes used in `checkpoint`": (_define("store_checkpoint.h", "TS_STORE_CHECKPOINT_BYTES")),
    "bytes used in `config/timercheck`": (_define("timer_check.h", "TS_TIMER_CHECK_BYTES")),
    "bytes of a watermark slot": watermark.SLOT_BYTES,
    "magic of a watermark slot": watermark_magic().decode(),
    "bytes of a state sector": state_sector.SECTOR_BYTES,
    "timers in a state sector": state_sector.CHUNK_IDS,
    "magic of a state sector": state_sector.MAGIC.to_bytes(4, "little").decode(),
    "magic of the staging file": staging_head()[0].decode(),
    "bytes of the staging file's header": staging_head()[1],
    "bytes of a remembered message id": ENTRY_DTYPE.itemsize,
    "magic of the wheel's checksums": wheel_checks.MAGIC.decode(),
    "bytes of the wheel per checksum": wheel_checks.SECTOR_BYTES,
    "slots of the wheel, by default": _DEFAULT.wheel_slot_count,
    "bytes of the wheel, by default": _DEFAULT.wheel_slot_count * wheel_slot.SLOT_BYTES,
    "extra bytes of the wheel while the store is open": OPEN_EXTRA_BYTES,
    "bytes of a commit log file, by default": _DEFAULT.commit_log_segment_bytes,
    "bytes of a queue file, by default": _DEFAULT.queue_segment_bytes,
    "bytes of a timer log file, by default": _DEFAULT.timer_log_segment_bytes,
}


def test_numbers_of_the_format_page_equal_the_code() -> None:
    assert _numbers() == {name: str(value) for name, value in _WANTED.items()}


def test_format_page_names_each_file_of_a_store() -> None:
    tree = Tree(ROOT)
    values = [getattr(tree, name) for name in dir(tree)]
    names = {str(one.relative_to(ROOT)) for one in values if isinstance(one, Path) and one != ROOT}
    assert "timerstore/watermark" in names
    told = set(re.findall(r"^\| `([^`]+)` \|", _FORMAT, re.MULTILINE))
    folders = {one.partition("/")[0] for one in told}
    assert names <= told | folders


@pytest.mark.parametrize("page", sorted(GUIDES.glob("*.md")), ids=lambda one: one.name)
def test_links_resolve(page: object) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):  # type: ignore[attr-defined]
        assert link.startswith("https:") or (GUIDES / link).exists(), link


def test_exit_codes_equal_the_table() -> None:
    text = (GUIDES / "operations.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+?) \|$", text, re.MULTILINE)
    assert rows == [(str(int(code)), meaning) for code, meaning in TABLE.items()]


def test_readers_have_the_same_names_in_page_and_code() -> None:
    text = (GUIDES / "operations.md").read_text()
    [named] = re.findall(r"^(`ls`.*?) read a store while", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"`(\w+)`", named) == READERS.split(", ")
    assert set(READERS.split(", ")) <= COMMANDS.keys()


def test_monitored_statistics_exist() -> None:
    text = (GUIDES / "operations.md").read_text().split("\n## Monitoring\n")[1].split("\n## ")[0]
    names = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    assert len(names) > 4
    assert set(names) <= COUNTERS.keys() | GAUGES.keys() | GROUP_GAUGES.keys()


def test_guarantees_page_lists_each_promise() -> None:
    text = (GUIDES / "guarantees.md").read_text()
    told = re.findall(r"^\| (P\d+) \|", text, re.MULTILINE)
    assert told == [row.name for row in promises.promises()]
