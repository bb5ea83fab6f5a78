"""Dead letters keep the reason of the last nack or bury that gave one."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import timerstore.aio
from tests.support.bench import Bench, small
from tests.support.driver import abandon
from tests.support.inside import inside
from timerstore import AckResult, DeadLetter, LeasedMessage, MessageError
from timerstore._engine.format.lease import ERROR_BYTES_MAX

TERMS: dict[str, Any] = {"lease": 60, "max_attempts": 2, "backoff": 0}


def take(bench: Bench) -> LeasedMessage:
    bench.turn()
    (one,) = bench.store.receive("t", "g", **TERMS)
    assert not any(name.startswith("TS_ERR") for name in one.properties)
    return one


def letter(bench: Bench) -> DeadLetter:
    bench.turn()
    (one,) = bench.store.dead_letters("g")
    assert not any(name.startswith("TS_ERR") for name in one.properties)
    return one


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.store.put("t", b"a", properties={"p": "v"})
    return bench


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        ("one", "two", "two"),
        ("one", None, "one"),  # the last reason that was given
        (None, "two", "two"),
        ("one", "", "one"),
        (None, None, None),
    ],
)
def test_last_reason_of_nacks_is_kept(
    filled: Bench, first: str | None, last: str | None, expected: str | None, delay: int
) -> None:
    filled.store.nack(take(filled), delay=delay, error=first)
    filled.turn(delay * 1000)
    filled.store.nack(take(filled), delay=delay, error=last)
    assert letter(filled).error == expected
    assert letter(filled).properties["p"] == "v"


def test_reason_is_kept_when_the_last_lease_runs_out(filled: Bench, tmp_path: Path) -> None:
    filled.store.nack(take(filled), error="no answer")
    longer = filled.store.extend(take(filled), lease=100)
    shutil.copytree(filled.root, tmp_path / "killed")
    abandon(filled.store)
    filled.root = tmp_path / "killed"
    filled.open()
    filled.turn(101_000)
    assert filled.store.ack(longer) is AckResult.EXPIRED
    assert letter(filled).error == "no answer"


def test_bury_with_a_reason_and_requeue_without_it(filled: Bench) -> None:
    filled.store.nack(take(filled), error="no answer")
    assert filled.store.bury(take(filled), error="no such address") is AckResult.BURIED
    assert letter(filled).error == "no such address"
    assert filled.store.requeue("g") == 1
    filled.store.bury(take(filled))
    assert letter(filled).error is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("x" * ERROR_BYTES_MAX, "x" * ERROR_BYTES_MAX),
        ("x" * (ERROR_BYTES_MAX + 1), "x" * ERROR_BYTES_MAX),
        ("é" * (ERROR_BYTES_MAX // 2), "é" * (ERROR_BYTES_MAX // 2)),
        ("x" + "é" * (ERROR_BYTES_MAX // 2), "x" + "é" * (ERROR_BYTES_MAX // 2 - 1)),
        ("a\0b\1c\2d\x1fe\tf\ng", "a b c d e\tf\ng"),
        ("\ud800", "?"),
    ],
)
def test_long_reasons_are_cut_and_control_characters_become_spaces(
    filled: Bench, given: str, kept: str
) -> None:
    filled.store.nack(take(filled), error=given)
    filled.store.nack(take(filled))
    assert letter(filled).error == kept


@pytest.mark.parametrize("error", [5, b"text", ValueError("x")])
def test_reason_that_is_no_text_is_an_error(filled: Bench, error: Any) -> None:
    one = take(filled)
    for call in (filled.store.nack, filled.store.bury):
        with pytest.raises(MessageError, match="error: wanted text or None"):
            call(one, error=error)
    assert filled.store.ack(one) is AckResult.ACKED


def test_message_without_room_for_a_reason_is_nacked_without_it(bench: Bench) -> None:
    """Its properties have room for a lease, and for nothing more."""
    low, high = 0, 40_000
    while high - low > 1:
        size = (low + high) // 2
        try:
            bench.store.put("probe", b"a", properties={"p": "v" * size})
            bench.turn()
            bench.store.receive("probe", f"g{size}", **TERMS, max_count=1000)
            low = size
        except MessageError:
            high = size
    bench.store.put("t", b"a", properties={"p": "v" * (low - 200)})
    assert bench.store.nack(take(bench), error="x" * ERROR_BYTES_MAX) is AckResult.NACKED
    assert bench.store.bury(take(bench), error="x" * ERROR_BYTES_MAX) is AckResult.BURIED
    assert letter(bench).error is None
    assert inside(bench.store).log.failed is None


def test_handling_keeps_the_exception(filled: Bench) -> None:
    filled.turn()
    consumer = filled.store.lease_consumer("t", "g", wait=0, lease=60, max_attempts=1)
    for message in consumer:
        with pytest.raises(ValueError, match="no answer"), consumer.handling(message):
            raise ValueError("no answer")
    assert letter(filled).error == "ValueError: no answer"


def test_shards_keep_the_reason(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path / "shards", 2, small()) as shards:
        shards.put_many("t", [b"a", b"b"], keys=["k", "l"])
        for kind in ("nack", "bury"):
            (one,) = shards.receive("t", "g", wait=10, max_attempts=1)
            getattr(shards, kind)(one, error=kind)
        shards.flush()
        while len(found := list(shards.dead_letters("g"))) < 2:
            pass
        assert sorted(str(one.error) for one in found) == ["bury", "nack"]
