"""Delete a topic while other calls of the topic run, and refuse to delete it."""

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.support.bench import Bench, small
from tests.support.inside import inside
from tests.support.inside.engine import Leases, Offsets, Targets
from tests.support.inside.methods import LEASING_ROW
from tests.support.message_groups import names_of_queue
from timerstore import AckResult, BusyError, MessageError
from timerstore._engine.base import failpoints
from timerstore._engine.storage.disk import Disk

NAMES = ["begun", "cancelled", "appended", "offsets_removed"]


@pytest.fixture
def used(tmp_path: Path) -> Any:
    """Return a store with ten messages of `gone`, of which the group `g` has received one."""
    one = Bench(tmp_path / "store")
    for number in range(10):
        one.store.put("gone", b"%d" % number)
    one.turn()
    one.store.receive("gone", "g", lease=60)
    yield one
    one.close()


def at(monkeypatch: pytest.MonkeyPatch, point: str, call: Callable[[], object]) -> None:
    """Run a call once, when `delete_topic` comes to a fail point."""
    calls = [call]

    def hook(name: str) -> None:
        if name == f"delete_topic_{point}" and calls:
            calls.pop()()

    monkeypatch.setattr(failpoints, "hook", hook)


def check_new(used: Bench) -> None:
    """Check that nothing is left of `gone`, and that every group gets the first new message."""
    store = used.store
    used.turn()
    assert store.committed("gone", "g") == store.committed("gone", "h") == {}
    assert [one for one in store.pending() if "gone" in one.topic] == []
    assert not [one for one in store.topics() if "gone" in one]
    store.put("gone", b"new")
    used.turn()
    assert [one.body for one in store.receive("gone", "g", max_count=9)] == [b"new"]
    with store.consumer("gone", "h") as consumer:
        assert [one.body for one in consumer.poll()] == [b"new"]
    used.turn(120_000)
    assert [one.body for one in used.out("gone")] == [b"new"]
    assert [one.body for one in store.receive("gone", "g", max_count=9)] == [b"new"]


# --- files ---


@pytest.mark.parametrize("is_slow", [False, True])
def test_reader_leaves_no_file_of_a_deleted_queue(
    used: Bench, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    """Else the new topic would be written to the removed file, and a checkpoint would fail.

    is_slow: the reader notes the file when the deletion is over.
    """
    segments = inside(used.local).routes.get("gone", 0).queue._segments
    remove, open_ = Disk.remove_tree, Disk.open
    has_opened, may_go_on = threading.Event(), threading.Event()
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(segments.read(0, 20)))

    def opened(disk: Disk, path: Path, **how: Any) -> Any:
        file = open_(disk, path, **how)
        if threading.current_thread() is reader:
            has_opened.set()
            assert may_go_on.wait(20)
        return file

    def remove_tree(disk: Disk, path: Path) -> None:
        if path.name == "gone":
            reader.start()
            assert has_opened.wait(20)
        if path.name == "gone" and not is_slow:
            may_go_on.set()
            reader.join()
        remove(disk, path)

    monkeypatch.setattr(Disk, "open", opened)
    monkeypatch.setattr(Disk, "remove_tree", remove_tree)
    assert used.store.delete_topic("gone") is True
    may_go_on.set()
    reader.join()
    assert found[0] != bytes(20)
    check_new(used)
    used.store.flush()
    used.reopen()
    assert [one.body for one in used.out("gone")] == [b"new"]


# --- leases ---


@pytest.mark.parametrize("max_attempts", [None, 1])
def test_receive_that_runs_leaves_no_lease(
    used: Bench, max_attempts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read its messages when the deletion begins, and leases them as late as it can."""
    has_read, may_go_on = threading.Event(), threading.Event()
    row, end_calls = LEASING_ROW.value, getattr(Leases, "end_calls", None)

    def slow_row(*given: Any) -> Any:
        found = row(*given)
        has_read.set()
        may_go_on.wait(20)
        return found

    def end(self: Any, *given: Any) -> None:
        may_go_on.set()
        assert end_calls is not None
        end_calls(self, *given)

    monkeypatch.setattr(*LEASING_ROW, slow_row)
    monkeypatch.setattr(Leases, "end_calls", end, raising=False)
    call = partial(used.store.receive, "gone", "g", max_count=3, max_attempts=max_attempts)
    thread = threading.Thread(target=call)
    thread.start()
    has_read.wait(20)

    def go_on() -> None:
        may_go_on.set()
        thread.join(20)

    at(monkeypatch, "offsets_removed", go_on)
    assert used.store.delete_topic("gone")
    thread.join(20)
    check_new(used)
    assert list(used.store.dead_letters("g")) == []


@pytest.mark.parametrize("point", NAMES)
def test_receive_during_the_deletion_is_busy(
    used: Bench, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if all messages that it would drop have expired: it records no progress."""
    store = used.store
    errors = []
    for _ in range(3):
        store.put("gone", b"expiring", expires_ms=used.clock.now_ms + 5)
    used.turn()
    assert len(store.receive("gone", "g", max_count=9)) == 9  # buffers the others

    def receive() -> None:
        used.clock.advance(10)
        with pytest.raises(BusyError, match="'gone' is being deleted") as error:
            store.receive("gone", "g")
        errors.append(error)

    at(monkeypatch, point, receive)
    assert store.delete_topic("gone")
    assert errors
    check_new(used)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("call", ["extend", "renew", "nack", "bury", "_give_back"])
def test_lease_cannot_be_moved_during_the_deletion(
    used: Bench, call: str, *, is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = used.store
    [leased] = store.receive("gone", "g", lease=60, max_attempts=1 if is_last else None)
    given = [leased.receipt] if call == "_give_back" else leased
    errors = []

    def move() -> None:
        with pytest.raises(BusyError, match="'gone' is being deleted") as error:
            getattr(store, call)(given)
        errors.append(error)

    at(monkeypatch, "begun", move)
    assert store.delete_topic("gone")
    assert errors
    assert store.ack(leased) is AckResult.SETTLED
    check_new(used)
    assert list(store.dead_letters("g")) == []


def test_last_attempts_end_with_the_topic_after_failed_deletions(
    used: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leases of last attempts are found in each try, whatever an earlier one has done."""
    store = used.store
    store.receive("gone", "g", max_attempts=1, max_count=4)
    for point in ("begun", "cancelled"):

        def fail() -> None:
            raise timerstore.FullError("no space")

        at(monkeypatch, point, fail)
        with pytest.raises(timerstore.FullError):
            store.delete_topic("gone")
    assert store.delete_topic("gone")
    check_new(used)
    assert list(store.dead_letters("g")) == []


def test_ordered_receive_forgets_the_message_groups_of_the_deleted_topic(used: Bench) -> None:
    store = used.store
    names = names_of_queue(3, 2)
    take = partial(store.receive, "ordered", "g", ordered=True, max_count=9)
    store.put("ordered", b"old", message_group=names[0])
    used.turn()
    assert len(take()) == 1
    store.delete_topic("ordered")
    store.put("ordered", b"other", message_group=names[1])
    used.turn()
    assert [one.body for one in take()] == [b"other"]
    store.put("ordered", b"new", message_group=names[0])
    used.turn()
    assert [one.body for one in take()] == [b"new"]


# --- offsets ---


@pytest.mark.parametrize("point", NAMES)
def test_commit_during_the_deletion_leaves_no_offset(
    used: Bench, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with used.store.consumer("gone", "h") as consumer:
        assert len(consumer.poll(7)) == 7
        at(monkeypatch, point, consumer.commit)
        assert used.store.delete_topic("gone")
        assert used.store.committed("gone", "h") == {}
    used.reopen()
    check_new(used)


def test_commit_that_waits_for_its_write_leaves_no_offset(
    used: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is requested before the deletion, and would be written after it."""
    write, runs = Offsets.wait_for_commit, []

    def wait_for_commit(self: Any, pending: Any) -> None:
        if not runs:
            runs.append(1)
            assert used.store.delete_topic("gone")
        write(self, pending)

    with used.store.consumer("gone", "h") as consumer:
        assert len(consumer.poll(7)) == 7
        with monkeypatch.context() as patched:
            patched.setattr(Offsets, "wait_for_commit", wait_for_commit)
            consumer.commit()
        assert runs
        assert used.store.committed("gone", "h") == {}
    check_new(used)


# --- puts on a level, and refusals ---


@pytest.mark.parametrize("many", [False, True])
def test_put_on_a_level_at_the_moment_of_the_deletion_is_busy(
    used: Bench, monkeypatch: pytest.MonkeyPatch, *, many: bool
) -> None:
    """It has its queues when the deletion begins, and appends after it."""
    has_queues, may_go_on = threading.Event(), threading.Event()
    level_of, errors = Targets.level_of, []

    def slow_level_of(*given: Any) -> Any:
        found = level_of(*given)
        has_queues.set()
        may_go_on.wait(20)
        return found

    def put() -> None:
        try:
            if many:
                used.store.put_many("gone", [b"level"], level=2)
            else:
                used.store.put("gone", b"level", level=2)
        except BusyError as error:
            errors.append(error)

    def go_on() -> None:
        may_go_on.set()
        thread.join(20)

    with monkeypatch.context() as patched:
        patched.setattr(Targets, "level_of", slow_level_of)
        thread = threading.Thread(target=put)
        thread.start()
        has_queues.wait(20)
        at(monkeypatch, "begun", go_on)
        assert used.store.delete_topic("gone")
    assert "'gone' is being deleted" in str(errors[0])
    assert used.store.stats()["level_pending_messages"] == 0
    check_new(used)


@pytest.mark.parametrize("reason", ["level", "recurring"])
def test_refused_deletion_changes_nothing(used: Bench, reason: str) -> None:
    store = used.store
    if reason == "level":
        store.put("gone", b"level", level=3)
    else:
        store.put_every("gone", b"tick", every=60, name="job")
    [one] = store.receive("gone", "g", lease=60)
    before = used.shown()
    with pytest.raises((BusyError, MessageError), match=r"fixed level|recurring messages"):
        store.delete_topic("gone")
    assert used.shown() == before
    for _ in range(2):
        assert store.extend(one, lease=60)
        store.put("gone", b"more")
        used.reopen()
        store = used.store
        assert store.topics()["gone"] == 1
        [one] = store.receive("gone", "g", lease=60)


def test_deletion_that_finds_no_space_at_once_changes_nothing(
    used: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = timerstore.FullError("no space")
    with monkeypatch.context() as patched:
        patched.setattr(inside(used.local).routes, "save_deletions", _raiser(full))
        with pytest.raises(timerstore.FullError):
            used.store.delete_topic("gone")
    assert used.store.put("gone", b"more")
    used.reopen()
    assert used.store.backlog("gone", "g").ready == 10


def _raiser(error: Exception) -> Callable[..., Any]:
    def call(*_given: Any, **_named: Any) -> Any:
        raise error

    return call


# --- ids and keys ---


def test_message_ids_of_a_deleted_topic_are_free(used: Bench) -> None:
    for named in ({}, {"delay": 5}):
        put = partial(used.store.put, "gone", b"x", message_id="m", **named)
        assert not put().duplicate
        assert put().duplicate
        assert used.store.delete_topic("gone")
    used.reopen()
    ids = ["m", "n"]
    for is_known in (False, True):
        batch = used.store.put_many("gone", [b"x", b"y"], message_ids=ids, atomic=True)
        assert [one.duplicate for one in batch] == [is_known, is_known]
    used.turn()
    assert used.bodies("gone") == [b"x", b"y"]


@pytest.mark.parametrize("end", ["lease", "back-off", "dead letter", "requeued"])
def test_unique_keys_of_a_deleted_topic_are_free(used: Bench, end: str) -> None:
    store = used.store
    store.delete_topic("gone")
    put = partial(store.put, "gone", b"x", key="only", unique=True)
    put()
    used.turn()
    [one] = store.receive("gone", "g", max_attempts=2)
    store.nack(one, delay=0)
    used.turn()
    [one] = store.receive("gone", "g", max_attempts=1 if end == "lease" else 3)
    if end == "back-off":
        store.nack(one, delay=60)
    elif end != "lease":
        store.bury(one)
        used.turn()
    if end == "requeued":
        assert store.requeue("g") == 1
    assert store.delete_topic("gone")
    assert not put().duplicate


@pytest.mark.parametrize("reason", ["level", "recurring"])
def test_shards_refuse_together(tmp_path: Path, reason: str) -> None:
    with timerstore.open_shards(tmp_path, 3, small()) as store:
        store.put_many("gone", [b"x"] * 30, message_ids=[f"m{n}" for n in range(30)])
        if reason == "level":
            store.put("gone", b"level", level=3)
        else:
            store.put_every("gone", b"tick", every=60, name="job")
        with pytest.raises((BusyError, MessageError), match=r"fixed level|recurring messages"):
            store.delete_topic("gone")
        assert [one.topics()["gone"] for one in store.stores] == [1, 1, 1]
