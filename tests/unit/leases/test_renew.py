"""A renewed lease keeps its receipt, after any number of renewals, restarts and retention."""

import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.bench import NOW, Bench, small
from tests.support.retaining import SIZES, fill
from timerstore import AckResult, CorruptError, LeasedMessage, LeaseLostError, MessageError
from timerstore._engine.leases import lease_timers
from timerstore._engine.queues.key_index import Index

TERMS: dict[str, Any] = {"lease": 10, "max_attempts": 2, "backoff": 0}


def take(bench: Bench) -> list[LeasedMessage]:
    bench.turn()
    return bench.store.receive("t", "g", **TERMS)


@pytest.fixture(params=[True, False], ids=["index", "no index"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    one = Bench(tmp_path / "store", small(index_enabled=request.param))
    one.store.put("t", b"a", properties={"p": "v"})
    yield one
    one.close()


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("end", ["ack", "ack_many", "nack", "bury", "extend", "give_back"])
def test_receipt_settles_a_lease_that_was_renewed(
    filled: Bench, tmp_path: Path, end: str, is_last: bool, is_killed: bool
) -> None:
    bench = filled
    if is_last:
        bench.store.nack(take(bench)[0])
    (one,) = take(bench)
    for k in range(3):
        assert bench.store.renew(one, lease=20) == bench.clock.now_ms + 20_000
        if is_killed:
            bench.kill(tmp_path / str(k))
        bench.turn(15_000)
        assert take(bench) == []  # past the end of the first lease
    if end == "ack_many":
        assert bench.store.ack_many([one, one]) == [AckResult.ACKED, AckResult.SETTLED]
    elif end == "give_back":
        assert bench.store._give_back([one.receipt]) == 1
    elif end == "extend":
        longer = bench.store.extend(one, lease=100)
    else:
        getattr(bench.store, end)(one)
    for _ in range(2):
        assert bench.store.ack(one) is AckResult.SETTLED
        with pytest.raises(LeaseLostError) as lost:
            bench.store.renew(one)
        assert lost.value.result == "SETTLED"
        if is_killed:
            bench.kill(tmp_path / "last")
            is_killed = False
    bench.turn(60_000)
    again, letters = take(bench), list(bench.store.dead_letters("g"))
    comes = end == "give_back" or (end == "nack" and not is_last)
    assert [other.body for other in again] == [b"a"] * comes
    assert len(letters) == (end == "bury" or (end == "nack" and is_last))
    assert all(other.properties["p"] == "v" for other in (*again, *letters))
    if end == "extend":
        assert bench.store.renew(longer) == bench.clock.now_ms + 30_000
        assert bench.store.ack(longer) is AckResult.ACKED


@pytest.mark.parametrize("is_killed", [False, True])
def test_nacked_message_is_not_acknowledged_by_the_renewed_receipt(
    filled: Bench, tmp_path: Path, is_killed: bool
) -> None:
    """Its back-off is a timer with the same message id, as the renewed lease was."""
    bench = filled
    (one,) = take(bench)
    bench.store.renew(one)
    bench.store.nack(one, delay=50)
    if is_killed:
        bench.kill(tmp_path / "killed")
    assert bench.store.ack(one) is AckResult.SETTLED
    bench.turn(51_000)
    assert [again.attempt for again in take(bench)] == [2]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("renewals", [0, 1, 2])
def test_lease_that_is_over_cannot_be_renewed(
    filled: Bench, tmp_path: Path, renewals: int, is_killed: bool
) -> None:
    bench = filled
    (one,) = take(bench)
    for _ in range(renewals):
        bench.store.renew(one, lease=10)
    bench.turn(11_000)
    if is_killed:
        bench.kill(tmp_path / "killed")
    for _ in range(2):
        with pytest.raises(LeaseLostError) as lost:
            bench.store.renew(one)
        assert lost.value.result == "EXPIRED"
    assert bench.store.ack(one) is AckResult.EXPIRED
    (again,) = take(bench)
    assert again.attempt == 2
    assert bench.store.ack(again) is AckResult.ACKED


@pytest.mark.parametrize("end", ["ack", "nack", "give_back"])
@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("has_index", [False, True])
def test_renewed_lease_is_settled_after_retention(
    tmp_path: Path, has_index: bool, is_killed: bool, end: str
) -> None:
    bench = Bench(tmp_path / "store", replace(SIZES, index_enabled=has_index))
    bench.store.put("t", b"a")
    (one,) = take(bench)
    for k in range(2):
        bench.store.renew(one, lease=1000)
        fill(bench, bench.store.stats()["log_end_bytes"])
        if is_killed:
            bench.kill(tmp_path / str(k))
    if end == "ack":
        assert bench.store.ack(one) is AckResult.ACKED
    elif end == "nack":
        assert bench.store.nack(one, delay=0) is AckResult.NACKED
    else:
        assert bench.store._give_back([one.receipt]) == 1
    # After a restart nothing tells any more that there was such a lease.
    assert bench.store.ack(one) is (AckResult.UNKNOWN if is_killed else AckResult.SETTLED)
    attempts = {"ack": [], "nack": [2], "give_back": [1]}
    assert [again.attempt for again in take(bench)] == attempts[end]
    bench.close()


def test_receipt_is_found_without_a_damaged_index(
    filled: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_args: Any) -> Any:
        raise CorruptError("a damaged index")

    (one,) = take(filled)
    filled.store.renew(one)
    filled.kill(tmp_path / "killed")
    with monkeypatch.context() as patched:
        patched.setattr(Index, "find", damaged)
        assert filled.store.ack(one) is AckResult.ACKED


def test_properties_do_not_show_that_the_lease_was_renewed(filled: Bench) -> None:
    for _ in range(TERMS["max_attempts"]):
        (one,) = take(filled)
        assert "TS_RENEWED" not in one.properties
        filled.store.renew(one, lease=10)
        filled.turn(11_000)
    (letter,) = filled.store.dead_letters("g")
    assert letter.properties["p"] == "v"
    assert "TS_RENEWED" not in letter.properties


def test_receipt_of_another_store_and_wrong_leases(filled: Bench, tmp_path: Path) -> None:
    (one,) = take(filled)
    other = Bench(tmp_path / "other", small())
    with pytest.raises(LeaseLostError) as lost:
        other.store.renew(one)
    assert lost.value.result == "UNKNOWN"
    other.close()
    longest_s = filled.config.delay_ms_max / 1000
    for wrong in (0, -1, longest_s + 0.001, None, "x"):
        with pytest.raises(MessageError, match="lease"):
            filled.store.renew(one, lease=wrong)  # type: ignore[arg-type]
    for right in (0.001, longest_s):
        assert filled.store.renew(one, lease=right) == NOW + round(right * 1000)
    assert filled.store.ack(one) is AckResult.ACKED


def test_table_of_renewals_keeps_the_leases_that_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_timers, "_KEPT_MIN", 1)
    with closing(Bench(tmp_path / "store")) as bench:
        bench.store.put_many("t", [b"x"] * 5)
        bench.turn()
        leased = bench.store.receive("t", "g", max_count=5)
        for one in leased:
            bench.store.renew(one)
        assert [bench.store.ack(one) for one in leased] == [AckResult.ACKED] * 5


@pytest.mark.parametrize(
    ("after_ms", "result"), [(3_600_000, AckResult.EXPIRED), (3_600_001, AckResult.SETTLED)]
)
def test_table_of_renewals_keeps_a_lease_for_an_hour_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after_ms: int, result: AckResult
) -> None:
    monkeypatch.setattr(lease_timers, "_KEPT_MIN", 1)
    with closing(Bench(tmp_path / "store")) as bench:
        bench.store.put_many("t", [b"x"] * 2)
        bench.turn()
        ended, held = bench.store.receive("t", "g", max_count=2, lease=7200)
        bench.store.renew(ended, lease=10)
        bench.turn(10_000 + after_ms)
        bench.store.renew(held)
        assert bench.store.ack(ended) is result


def test_ack_never_misses_a_renewal_of_another_thread(tmp_path: Path) -> None:
    with timerstore.open(tmp_path, small(flush="async")) as store:
        ends: list[str] = []
        for _ in range(100):
            store.put("t", b"a")
            (one,) = store.receive("t", "g", wait=10, lease=60)
            begun = threading.Event()

            def renew(one: LeasedMessage = one, begun: threading.Event = begun) -> None:
                try:
                    while True:
                        store.renew(one, lease=60)
                        begun.set()
                except LeaseLostError as error:
                    ends.append(error.result)

            thread = threading.Thread(target=renew)
            thread.start()
            assert begun.wait(20)
            assert store.ack(one) is AckResult.ACKED
            thread.join(20)
        assert ends == ["SETTLED"] * 100


def test_shards_and_servers_renew(tmp_path: Path) -> None:
    with timerstore.open_shards(tmp_path / "shards", 2, small()) as shards:
        shards.put("t", b"a")
        (of_shard,) = shards.receive("t", "g", wait=10, lease=10)
        assert shards.renew(of_shard, lease=20) > of_shard.lease_until_ms
        assert shards.ack(of_shard) is AckResult.ACKED
    with timerstore.open(tmp_path / "shared", small()) as store:
        store.put("t", b"a")
        with (
            timerstore.net.serve(store, socket=tmp_path / "x.sock") as server,
            timerstore.connect(server.urls[0], return_leases=True) as remote,
        ):
            (one,) = remote.receive("t", "g", wait=10, lease=10)
            assert remote.renew(one, lease=20) > one.lease_until_ms
            assert remote.ack(one) is AckResult.ACKED
            with pytest.raises(LeaseLostError):
                remote.renew(one, lease=20)
