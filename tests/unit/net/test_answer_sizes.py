"""An answer may have exactly as many bytes as a frame; one byte more is another answer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import timerstore
import timerstore.net
from tests.support.bench import Bench
from tests.support.inside.limits import NAMES_BYTES
from timerstore import MessageError
from timerstore.net import server_connection
from timerstore.net.server_limits import ServerLimits
from timerstore.net.shortened_results import ResultShortener
from timerstore.net.wire_messages import Answer


class Case(NamedTuple):
    """A call, and what it gives if its answer has one byte too many."""

    call: Callable[[Any], Any]
    shorter: Any


def _bodies(found: Any) -> list[bytes]:
    return [one.body for one in found]


CASES: dict[str, Case] = {
    "put": Case(lambda store: store.put("t", b"x").topic, "is stored, but its receipt is longer"),
    "pull": Case(lambda store: _bodies(store.pull("t", 0, 0).messages), [b"0", b"1"]),
    "query": Case(
        lambda store: _bodies(store.query("t", "k")), "the result is longer than a frame"
    ),
    "poll": Case(lambda store: _bodies(store.consumer("t", "reader").poll(9)), [b"0", b"1"]),
}


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    one = Bench(tmp_path / "store")
    for k in range(3):
        one.store.put("t", b"%d" % k, keys="k", queue_id=0, properties={"p": "v" * 100})
    one.turn()
    yield one
    one.close()


@pytest.mark.parametrize("name", CASES)
def test_answer_may_be_as_long_as_a_frame(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case, sizes, encode = CASES[name], list[int](), server_connection.encode

    def measured(message: Any) -> bytes:
        payload = encode(message)
        if isinstance(message, Answer):
            sizes.append(len(payload))
        return payload

    def made(frame_bytes_max: int) -> Any:
        limits, path = ServerLimits(frame_bytes_max=frame_bytes_max), tmp_path / "x.sock"
        with (
            timerstore.net.serve(bench.store, socket=path, limits=limits) as server,
            timerstore.connect(server.urls[0], retry_for=0) as remote,
        ):
            try:
                return case.call(remote)
            except MessageError as error:
                return str(error)

    with monkeypatch.context() as patched:
        patched.setattr(server_connection, "encode", measured)
        whole = made(1 << 20)
    size = max(sizes)
    assert made(size) == whole
    found = made(size - 1)
    assert case.shorter in found if isinstance(case.shorter, str) else found == case.shorter


def test_receive_leases_as_many_messages_as_fit_into_a_frame(bench: Bench, tmp_path: Path) -> None:
    sizes = [one.store_bytes + NAMES_BYTES.value for one in bench.out()]
    counts = []
    for number, limit in enumerate([sum(sizes), sum(sizes) - 1, sizes[0], sizes[0] - 1]):
        limits, path = ServerLimits(frame_bytes_max=limit), tmp_path / "x.sock"
        with (
            timerstore.net.serve(bench.store, socket=path, limits=limits) as server,
            timerstore.connect(server.urls[0], retry_for=0) as remote,
        ):
            counts.append(len(remote.receive("t", f"g{number}", max_count=9)))
    assert counts == [3, 2, 1, 1]


def test_each_message_is_in_a_result_or_comes_with_the_next(bench: Bench) -> None:
    """Whatever the limit. A receive gives back, a list keeps, a pull goes on after its last one."""
    leased, page = bench.store.receive("t", "g", max_count=3), bench.store.pull("t", 0, 0)
    receipts = [one.receipt for one in leased]
    counts = set()
    for limit in range(200, 4000, 10):
        shortener = ResultShortener(limit)
        try:
            pulled = shortener.pulled(page)
            fitting, cut_off = shortener.received(leased)
        except MessageError:
            continue  # not one fits
        assert [*(one.receipt for one in fitting), *cut_off] == receipts
        kept: list[Any] = []
        assert [*shortener.listed(leased, kept.extend), *kept] == leased
        assert pulled.messages == page.messages[: len(pulled.messages)]
        assert pulled.next_offset == len(pulled.messages)
        counts.add(len(fitting))
    assert counts == {1, 2}
