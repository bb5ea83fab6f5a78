"""A call always gets an answer, whatever fails while it is answered, and the connection goes on."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.bench import Bench, small
from tests.support.inside import inside
from tests.support.served_bench import RawClient, ServedBench
from tests.support.until import until
from timerstore.errors import MessageError
from timerstore.net import server_connection
from timerstore.net.answer_queue import AnswerQueue
from timerstore.net.call_runner import CallRunner
from timerstore.net.call_table import STORE_CALLS
from timerstore.net.server_connection import ServerConnection


class UnspeakableError(Exception):
    """An exception whose text raises another one."""

    def __str__(self) -> str:
        raise ValueError("no text")


CALLS: dict[str, list[Any]] = {
    "put on the loop": ["put", ["t", b"x"]],
    "put of a new topic": ["put", ["new", b"x"]],
    "call in a thread": ["topics"],
    "call of the loop": ["ack", ["no receipt"]],
    "receive": ["receive", ["t", "g"]],
    "list": ["pending"],
}
ERRORS = [ValueError, TypeError, MemoryError, UnspeakableError]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedBench]:
    bench = Bench(tmp_path / "store", small(flush="sync"))
    bench.store.put("t", b"first")
    bench.turn()
    one = ServedBench(bench, tmp_path / "x.sock")
    yield one
    one.close()


def _failing_once(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception
) -> Callable[[], int]:
    """Make the first call of a function raise an error; return how often it was called."""
    real, calls = getattr(owner, name), count()
    called = 0

    def failing(*given: Any, **named: Any) -> Any:
        nonlocal called
        called += 1
        if next(calls) == 0:
            raise error
        return real(*given, **named)

    monkeypatch.setattr(owner, name, failing)
    return lambda: called


STEPS: dict[str, tuple[Any, str]] = {
    "spec": (CallRunner, "spec_of"),
    "run": (CallRunner, "run"),
    "put": (CallRunner, "put_without_task"),
    "lease call": (CallRunner, "lease_call"),
    "leases": (ServerConnection, "_is_answered"),
    "receipt": (ServerConnection, "_send_receipt"),
    "encoded result": (ServerConnection, "_encoded"),
    "bytes of a message": (server_connection, "encode"),
    "error": (server_connection, "failure_of"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", CALLS)
def test_call_has_one_answer_if_a_step_of_answering_fails(
    served: ServedBench,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    step: str,
    error: type[Exception],
) -> None:
    raw = served.raw()
    raw.hello()
    with monkeypatch.context() as patched:
        called = _failing_once(patched, *STEPS[step], error())
        raw.send([2, 1, *CALLS[name]])
        reply = raw.reply()
        is_met = called() > 0
    assert reply[1] == 1
    if is_met and step != "error":
        assert reply[0] == 6
        assert reply[2] in {"ServerError", "MessageError"}
    _goes_on(served, raw)


def _goes_on(served: ServedBench, raw: RawClient) -> None:
    raw.send([2, 2, "topics"])
    assert raw.reply()[:2] == [5, 2]
    assert served.server.stats()["net_running_requests"] == 0


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", [one for one, spec in STORE_CALLS.items() if spec.to_wire])
def test_result_without_a_form_on_the_wire_is_a_server_error(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch, name: str, error: type[Exception]
) -> None:
    """Not a MessageError: the arguments were right, and the call was made."""

    def failing(_result: Any) -> Any:
        raise error

    arguments: dict[str, list[Any]] = {
        "put": [["t", b"x"]],
        "put_many": [["t", [b"x"]]],
        "reschedule": [[served.bench.store.put("t", b"later", delay=60).handle], {"delay": 1.0}],
        "pull_batch": [["t", 0, 0]],
        "histogram": [],
    }
    raw = served.raw()
    raw.hello()
    with monkeypatch.context() as patched:
        spec = STORE_CALLS[name]
        object.__setattr__(spec, "to_wire", failing)
        try:
            raw.send([2, 1, name, *arguments[name]])
            reply = raw.reply()
        finally:
            patched.undo()
            object.__setattr__(spec, "to_wire", _TO_WIRE[name])
    assert reply[:3] == [6, 1, "ServerError"], reply
    assert f"{name}: the call was made, but its result cannot be sent" in reply[3]
    _goes_on(served, raw)


_TO_WIRE = {name: spec.to_wire for name, spec in STORE_CALLS.items()}


@pytest.mark.parametrize("waits", [False, True])
def test_messages_of_a_receive_that_cannot_be_sent_are_given_back(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    raw = served.raw()
    raw.hello()
    if waits:
        served.bench.store.ack_many(served.bench.store.receive("t", "g", max_count=100))
    with monkeypatch.context() as patched:
        owner, name = (ServerConnection, "_encoded") if waits else (server_connection, "encode")
        _failing_once(patched, owner, name, ValueError("planted"))
        raw.send([2, 1, "receive", ["t", "g"], {"wait": 5.0} if waits else {}])
        if waits:
            # The call counts as a waiting one before its first look, which would find the message.
            until(lambda: inside(served.bench.local).long_polls.count)
            served.bench.store.put("t", b"late")
            served.bench.turn()
        assert raw.reply()[2] == "ServerError"
    served.bench.turn()
    raw.send([2, 2, "receive", ["t", "g"], {"wait": 5.0}])
    assert [one["attempt"] for one in raw.reply()[2]] == [1]


def test_answers_that_cannot_be_written_end_the_connection(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = served.raw()
    raw.hello()
    with monkeypatch.context() as patched:
        _failing_once(patched, AnswerQueue, "_write_each", MemoryError())
        raw.send([2, 1, "topics"])
        assert raw.is_closed_by_server()
    assert served.connect().topics()["t"] == 1


def test_message_that_cannot_be_read_ends_the_connection_with_a_reason(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = served.raw()
    raw.hello()
    with monkeypatch.context() as patched:
        _failing_once(patched, server_connection, "decode_from_client", MemoryError())
        raw.send([2, 1, "topics"])
        assert raw.reply()[1:3] == [0, "ServerError"]
    assert raw.is_closed_by_server()


def test_error_longer_than_a_message_may_be_is_shortened(
    served: ServedBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = served.raw()
    raw.hello()
    with monkeypatch.context() as patched:
        _failing_once(patched, CallRunner, "run", MessageError(["no"] * 300_000))
        raw.send([2, 1, "topics"])
        assert raw.reply()[:3] == [6, 1, "ServerError"]
    _goes_on(served, raw)
