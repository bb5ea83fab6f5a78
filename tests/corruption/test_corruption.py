"""Damage a golden store in every way: it answers as before, or raises an error with file and place.

There is never a wrong message, a silent loss, a hang or a crash of the interpreter.

    CI          a seeded sample of each kind, within some seconds of one core
    `-m deep`   every bit of a smaller store, every block operation, every pair (make nightly)
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

import timerstore
from tests.corruption import damages, small
from tests.corruption.damages import Case, Files
from tests.corruption.golden import CONFIG, NOW_MS, Golden, make
from tests.corruption.ordeal import Ordeal, Outcome
from tests.support import ledger
from tests.support.amounts import both
from timerstore._engine.format import wheel_slot
from timerstore.testing import ManualClock

_FINE = {"same", "refused", "known"}
_KINDS = ("flips", "blocks", "truncations", "whole files", "pairs")
_FOR_EVER = 1e12
_DEEP_S = float(os.environ.get("TIMERSTORE_CORRUPTION_S", _FOR_EVER))
"""Cases of each kind in the deep run. A smaller part is recorded under its own name."""
_FOLDERS = ("commitlog", "consumequeue", "consumequeue/orders", "consumequeue/orders/0", "index",
            "timerlog", "config", "timerstore")  # fmt: skip


def _whole_files(files: Files) -> list[Case]:
    ways = (damages.delete, damages.zero, damages.garble, damages.empty)
    found = [way(name) for name in files for way in ways]
    return found + [case for folder in _FOLDERS for case in damages.extra(folder)]


def _cases(what: str, files: Files, older: Files, random: Random, *, deep: bool) -> list[Case]:
    makers: dict[str, Callable[[], list[Case]]] = {
        "flips": lambda: damages.flips(files, random, 12),
        "blocks": lambda: list(damages.blocks(files, older, random)),
        "truncations": lambda: list(damages.truncations(files, random, 300 if deep else 4)),
        "whole files": lambda: _whole_files(files),
        "pairs": lambda: list(damages.pairs(files)),
    }
    return damages.spread(makers[what](), random)


def _tails(golden: Golden) -> list[Callable[[Path], None]]:
    """Return functions that remove the last record, or the last two, which are not durable."""
    log = max(name for name in golden.files if name.startswith("commitlog/"))
    staged = "timerstore/staging"

    def cut(root: Path, last: int) -> None:
        (root / staged).unlink(missing_ok=True)
        data = bytearray((root / log).read_bytes())
        at = len(data)
        for _ in range(last):
            at = data.rindex((0xDAA320A7).to_bytes(4, "big"), 0, at) - 4
        data[at:] = bytes(len(data) - at)
        (root / log).write_bytes(data)

    return [lambda root, last=last: cut(root, last) for last in (1, 2)]


def _ordeal(golden: Golden, tmp_path: Path) -> Ordeal:
    ordeal = Ordeal(golden, tmp_path)
    if not golden.is_closed:
        for damage in _tails(golden):
            ordeal.allow(damage)
    return ordeal


def _judge(found: list[Outcome], *, is_closed: bool) -> None:
    fine = _FINE if is_closed else _FINE | {"cut"}
    bad = [one for one in found if one.kind not in fine]
    assert not bad, "\n".join(f"{one.kind}: {one.name}: {one.detail[-400:]}" for one in bad[:20])


def _run(
    what: str, tmp_path: Path, *, is_closed: bool, deep: bool, wanted: int | None = None
) -> tuple[list[Outcome], int]:
    golden = make(tmp_path / "made", is_closed=is_closed)
    cases = _cases(what, golden.files, golden.older, Random(what), deep=deep)
    asked = cases[:wanted]
    found = _ordeal(golden, tmp_path).run(asked, until_s=_DEEP_S)
    print(what, "of", len(cases), dict(Counter(one.kind for one in found)))
    _judge(found, is_closed=is_closed)
    return found, len(cases)


@pytest.mark.parametrize("what", _KINDS)
@pytest.mark.parametrize("wanted", both("damages of a kind"))
def test_damage_raises_error_or_changes_nothing(wanted: int, what: str, tmp_path: Path) -> None:
    found, count = _run(what, tmp_path, is_closed=True, deep=False, wanted=wanted)
    assert len(found) == min(wanted, count)
    assert {"same", "refused"} <= {one.kind for one in found}


@pytest.mark.deep
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("what", [what for what in _KINDS if what != "flips"])
def test_all_damage_raises_error_or_changes_nothing(
    what: str, is_closed: bool, tmp_path: Path
) -> None:
    begun = time.monotonic()
    found, count = _run(what, tmp_path, is_closed=is_closed, deep=True)
    assert len(found) == count or _DEEP_S < _FOR_EVER
    kinds = Counter(one.kind for one in found)
    ledger.add(f"corruption: {what}", len(found), time.monotonic() - begun, dict(kinds))


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_every_flipped_bit_raises_error_or_changes_nothing(is_closed: bool, tmp_path: Path) -> None:
    golden = small.make(tmp_path / "made", is_closed=is_closed)
    content, reserve = damages.every_bit(golden.files, Random(is_closed), is_closed=is_closed)
    cases = damages.spread([*content, *reserve], Random(7))
    begun = time.monotonic()
    processes = len(os.sched_getaffinity(0))
    found = _ordeal(golden, tmp_path).run(cases, until_s=_DEEP_S, processes=processes)
    assert len(found) == len(cases) or _DEEP_S < _FOR_EVER
    seconds = (time.monotonic() - begun) * processes
    of_content = {name for name, _ in content}
    for suite, of_it in (("every bit", True), ("reserve, by sample", False)):
        these = [one for one in found if (one.name in of_content) == of_it]
        kinds = Counter(one.kind for one in these)
        ledger.add(f"corruption: {suite}", len(these), seconds * len(these) / len(found), kinds)
    _judge(found, is_closed=is_closed)  # recorded even if the check fails


@pytest.mark.more
@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_queue_or_timer_log_of_another_length_is_rebuilt(is_closed: bool, tmp_path: Path) -> None:
    golden = make(tmp_path / "made", is_closed=is_closed)
    ordeal = Ordeal(golden, tmp_path)
    names = [name for name in golden.files if name.startswith(("consumequeue/", "timerlog/"))]
    assert len(names) > 8
    cases = [damages.cut(name, size) for name in names[1:] for size in (1, 100, 5000)]
    cases += [damages.cut(name, 0) for name in names if not name.startswith(names[0][:20])]
    for one in ordeal.run(cases):
        # If two files of the timer log differ, it is unknown which of them is right.
        is_doubtful = one.name.startswith("timerlog/") and one.detail.startswith("ConfigError")
        assert one.kind in {"same", "cut"} or is_doubtful, one


def test_lost_end_of_log_is_detected_without_the_watermark(tmp_path: Path) -> None:
    """The counts file knows how far the log was durable."""
    golden = make(tmp_path / "made", is_closed=False)
    log = max(name for name in golden.files if name.startswith("commitlog/"))
    ordeal = Ordeal(golden, tmp_path)
    mark = damages.delete("timerstore/watermark")
    ways = (damages.delete, damages.zero, damages.garble)
    found = ordeal.run([damages.both(way(log), mark) for way in ways])
    assert [one.kind for one in found] == ["refused"] * 3, found


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("at", [4, 28], ids=["previous position", "log offset"])
def test_negative_offset_in_timer_unit_is_not_taken_for_a_removed_record(
    at: int, is_closed: bool, tmp_path: Path
) -> None:
    """The offset lies before all records, as those that retention removed."""
    golden = small.make(tmp_path / "made", is_closed=is_closed)
    cases = [
        damages.flip(name, 8 * (unit + at) + 7)
        for name, data in golden.files.items()
        if name.startswith("timerlog/")
        for unit in range(0, len(data) - 52 - 16, 52)
        if data[unit + 3] == 52 and data[unit + at] == 0
    ]
    assert cases
    found = Ordeal(golden, tmp_path).run(cases)
    assert {one.kind for one in found} <= {"refused", "same"}, found


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_slot_with_the_time_of_another_slot_is_damage(is_closed: bool, tmp_path: Path) -> None:
    """In a killed store, cancelled units count, too.

    They can hide the same number of lost units.
    """
    golden = small.make(tmp_path / "made", is_closed=is_closed)
    count = golden.asked.config.wheel_slot_count
    slots = wheel_slot.read(golden.files["timerwheel"][: 32 * count])
    cases = [
        damages.flip("timerwheel", 8 * (32 * row + 7) + bit)
        for row in np.flatnonzero(slots["count"] > 0).tolist()
        for bit in range(5)
    ]
    found = _ordeal(golden, tmp_path).run(cases)
    assert {one.kind for one in found} <= {"same", "refused"}, found


def test_staged_data_is_ignored_when_it_exceeds_its_segment(tmp_path: Path) -> None:
    golden = small.make(tmp_path / "made", is_closed=False)
    cases = [damages.flip("timerstore/staging", 8 * at + bit) for at in (41, 57) for bit in (4, 5)]
    found = _ordeal(golden, tmp_path).run(cases)
    assert {one.kind for one in found} == {"same"}, found


@pytest.mark.parametrize("is_closed", [True, False], ids=["closed", "killed"])
def test_noise_at_the_end_of_a_record_is_not_a_property(is_closed: bool, tmp_path: Path) -> None:
    """The CRC of the record is lost with it, and the CRC of the body still matches."""
    golden = small.make(tmp_path / "made", is_closed=is_closed)
    name = min(name for name in golden.files if name.startswith("commitlog/"))
    data, random = golden.files[name], Random(1)
    cases, at = [], 0
    while data[at + 4 : at + 8] == (0xDAA320A7).to_bytes(4, "big"):
        at += int.from_bytes(data[at : at + 4], "big")
        cases += [damages.put(name, at - size, random.randbytes(size)) for size in (20, 40)]
        cases.append(damages.put(name, at - 11, b"FDEBCAFEED"))  # letters in place of the digits
    found = Ordeal(golden, tmp_path).run(cases)
    assert {one.kind for one in found} == {"refused"}, found


def test_comparison_detects_a_planted_wrong_answer(tmp_path: Path) -> None:
    """Test the method itself with a store whose queue has a unit of another message."""
    golden = make(tmp_path / "made", is_closed=True)
    ordeal = Ordeal(golden, tmp_path)

    def two_messages_less(root: Path) -> None:
        clock = ManualClock(NOW_MS)
        with timerstore.open(root, CONFIG, clock=clock, threads=False) as store:
            store.cancel(next(iter(store.pending())).handle)

    def die(_root: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    found = ordeal.run([("planted", two_messages_less), ("planted death", die), ("none", _nothing)])
    assert [one.kind for one in found] == ["wrong", "crashed", "same"]


def _nothing(_root: Path) -> None:
    pass
