"""The data that the page gets from a store that this process has open."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.support.bench import NOW, SECOND, Bench, small
from tests.support.paged import BEARER, ORIGIN, TOKEN, Paged
from tests.support.served_bench import ServedBench
from tests.support.shards import ShardBench
from timerstore.dashboard.source import TOPICS_SHOWN, TURNS, topics_of

MINUTE = 60 * SECOND


# --- numbers --------------------------------------------------------------------------------------


def test_numbers_of_an_empty_store(bench: Bench, paged: Paged) -> None:
    told = paged.now()
    assert (told["pending"], told["late"], told["next_ms"]) == (0, 0, None)
    assert told["topics"] == []
    assert told["ring"]["counts"] == [0] * 60
    assert told["lateness"]["number"] == 0
    assert told["history"] == [0.0] * 60
    about = paged.source.about()
    assert (about["path"], about["mode"], about["shards"]) == (str(bench.root), "open", None)
    assert (about["read_only"], about["clock_runs"]) == (False, False)


@pytest.mark.parametrize("turn", TURNS)
def test_ring_counts_messages_by_due_time(bench: Bench, paged: Paged, turn: str) -> None:
    unit, places = TURNS[turn]
    first = NOW // unit * unit
    inside = [NOW, first + unit - 1, first + unit, first + unit * places - 1]
    for due_ms in (*inside, first + unit * places):
        bench.store.put("t", b"x", deliver_ms=max(NOW + 1, due_ms))
    ring = paged.now(turn)["ring"]
    assert (ring["begin_ms"], ring["unit_ms"], len(ring["counts"])) == (first, unit, places)
    wanted = [0] * places
    for due_ms in inside:
        wanted[(max(NOW + 1, due_ms) - first) // unit] += 1
    assert ring["counts"] == wanted


def test_groups_are_shown_with_their_backlogs(bench: Bench, paged: Paged) -> None:
    assert (paged.now()["groups"], paged.now()["more_groups"]) == ([], 0)
    bench.store.put_many("t", [b"x"] * 4)
    bench.turn(5 * SECOND)
    first, second = bench.store.receive("t", "g", max_count=2, lease=600)
    bench.store.nack(first, delay=60)
    bench.store.bury(second)
    bench.turn()
    [[*names, ready, leased, backoff, dead, oldest_ms]] = paged.now()["groups"]
    assert names == ["t", "g"]
    assert (ready, leased, backoff, dead) == (2, 0, 1, 1)
    assert 5 * SECOND <= oldest_ms < 6 * SECOND


def test_connected_store_is_shown_as_an_open_one(tmp_path: Path) -> None:
    served = ServedBench(Bench(tmp_path / "store"), tmp_path / "s")
    try:
        store = served.bench.store
        receipt = store.put("a", b"body", delay=60, keys=["k"])
        store.put("b", b"x")
        served.bench.turn()
        paged = Paged.of(served.connect())
        told = paged.now()
        assert (told["pending"], told["topics"]) == (1, [["a", 1], ["b", 0]])
        assert told["groups"] == []
        about = paged.source.about()
        assert (about["path"], about["mode"]) == (f"unix://{tmp_path}/s", "open")
        for text in (receipt.handle, receipt.message_id):
            [found] = paged.source.search(text, None)["found"]
            assert found["handle"] == receipt.handle
            assert found["message"]["body"] == "body"
        assert [row["message_id"] for row in paged.source.search("k", None)["rows"]] == [
            receipt.message_id
        ]
        rows = paged.source.rows(0, 1 << 60, "a", 10)["rows"]
        assert [row["handle"] for row in rows] == [receipt.handle]
        assert paged.source.cancel(receipt.handle, receipt.message_id)["result"] == "CANCELLED"
    finally:
        served.close()


def test_numbers_change_when_messages_come_and_go(bench: Bench, paged: Paged) -> None:
    bench.store.put_many("a", [b"x"] * 5, deliver_ms=NOW + 10 * SECOND)
    bench.store.put("b", b"x", delay=60)
    told = paged.now()
    assert told["topics"] == [["a", 5], ["b", 1]]
    assert (told["pending"], told["next_ms"]) == (6, NOW + 10 * SECOND)
    assert paged.now(topic="b")["ring"]["counts"].count(1) == 1
    assert paged.now(topic="nobody")["ring"]["counts"] == [0] * 60
    bench.turn(10 * SECOND)
    told = paged.now()
    assert told["topics"] == [["b", 1], ["a", 0]]
    assert told["pending"] == 1
    assert told["lateness"]["number"] == 5
    assert told["lateness"]["worst"] == 1
    assert sum(told["history"]) == pytest.approx(5)


def test_numbers_report_overdue_messages(bench: Bench, paged: Paged) -> None:
    bench.store.put("a", b"x", delay=1)
    bench.turn()
    bench.clock.advance(5 * SECOND)
    told = paged.now()
    assert told["late"] == 1
    assert told["behind"]["delivery_lag_ms"] > 3000


def test_next_due_time_is_found_after_one_hour(bench: Bench, paged: Paged) -> None:
    bench.store.put("a", b"x", deliver_ms=NOW + 7 * 60 * MINUTE)
    assert paged.now()["next_ms"] == (NOW + 7 * 60 * MINUTE) // MINUTE * MINUTE
    assert paged.now(topic="b")["next_ms"] is None


def test_topics_are_cut_to_the_largest() -> None:
    waiting = {f"t{k:03}": k + 1 for k in range(TOPICS_SHOWN + 2)}
    told = topics_of(waiting)
    assert told["topics"][0] == [f"t{TOPICS_SHOWN + 1:03}", TOPICS_SHOWN + 2]
    assert len(told["topics"]) == TOPICS_SHOWN
    assert (told["more_topics"], told["more_pending"]) == (2, 3)


def test_system_topics_are_hidden(bench: Bench, paged: Paged) -> None:
    bench.store.put("a", b"x", level=2)
    bench.store.put("a", b"x", delay=60)
    bench.turn()
    assert paged.now()["topics"] == [["a", 2]]


# --- rows -----------------------------------------------------------------------------------------


def test_rows_list_messages_due_in_the_range(bench: Bench, paged: Paged) -> None:
    due = [NOW + k * SECOND for k in (1, 2, 3)]
    receipts = [bench.store.put("a", b"x", deliver_ms=one) for one in due]
    bench.store.put("b", b"x", deliver_ms=due[1])
    span = {"begin_ms": due[1], "end_ms": due[2]}
    told = paged.ask("/api/rows", **span)
    assert [(one["topic"], one["due_ms"]) for one in told["rows"]] == [("a", due[1]), ("b", due[1])]
    assert not told["has_more"]
    [row] = paged.ask("/api/rows", **span, topic="a")["rows"]
    assert (row["message_id"], row["handle"]) == (receipts[1].message_id, receipts[1].handle)
    told = paged.ask("/api/rows", **span, max=1)
    assert (len(told["rows"]), told["has_more"]) == (1, True)


def test_rows_rejects_invalid_arguments(paged: Paged) -> None:
    for given, name in (
        ({"end_ms": 1}, "begin_ms"),
        ({"begin_ms": -1, "end_ms": 1}, "begin_ms"),
        ({"begin_ms": 0, "end_ms": "1e3"}, "end_ms"),
        ({"begin_ms": 0, "end_ms": "9" * 19}, "end_ms"),
        ({"begin_ms": 0, "end_ms": "²"}, "end_ms"),
        ({"begin_ms": 0, "end_ms": 1, "max": 0}, "max"),
        ({"begin_ms": 0, "end_ms": 1, "max": 501}, "max"),
        ({"begin_ms": 0, "end_ms": 1, "max": ""}, "max"),
    ):
        told = paged.ask("/api/rows", 400, **given)
        assert told["error"] == "MessageError"
        assert told["what"].startswith(f"{name}: wanted ")
    for limit in (1, 500):
        found = paged.ask("/api/rows", begin_ms=0, end_ms=0, max=limit)
        assert found == {"rows": [], "has_more": False}


# --- search ---------------------------------------------------------------------------------------


def test_search_finds_by_handle_id_and_key(bench: Bench, paged: Paged) -> None:
    bench.store.put("other", b"x", delay=60)
    receipt = bench.store.put(
        "orders", "zu spät <b>".encode(), delay=60, keys=["k1", "k2"], tags="paid"
    )
    bench.turn()
    for name in (receipt.handle, receipt.message_id, f"  {receipt.message_id}\n"):
        [found] = paged.ask("/api/search", message=name)["found"]
        assert (found["state"], found["where"], found["topic"]) == ("pending", "wheel", "orders")
        assert found["handle"] == receipt.handle
        assert (found["chain_place"], found["chain_length"]) == (1, 2)
        assert [one["what"] for one in found["history"]] == ["put"]
        told = found["message"]
        assert (told["body"], told["tags"], told["keys"]) == ("zu spät <b>", "paid", ["k1", "k2"])
    told = paged.ask("/api/search", message="k2")
    assert told["found"] == []
    [row] = told["rows"]
    assert (row["message_id"], row["state"]) == (receipt.message_id, "pending")
    told = paged.ask("/api/search", message=receipt.message_id, topic="other")
    assert told == {"found": [], "rows": []}


def test_search_of_a_delivered_message_has_history_and_no_handle(
    bench: Bench, paged: Paged
) -> None:
    receipt = bench.store.put("orders", b"x", delay=1)
    bench.turn()
    bench.turn(2 * SECOND)
    [found] = paged.ask("/api/search", message=receipt.handle)["found"]
    assert (found["state"], found["where"], found["handle"]) == ("delivered", "queue", "")
    assert [one["what"] for one in found["history"]] == ["put", "delivered"]


def test_search_of_a_rescheduled_message_has_the_new_handle(bench: Bench, paged: Paged) -> None:
    old = bench.store.put("orders", b"x", delay=60)
    new = bench.store.reschedule(old, delay=90)
    [found] = paged.ask("/api/search", message=old.handle)["found"]
    assert found["handle"] == new.handle
    assert paged.cancel(handle=found["handle"], confirm=old.message_id)["result"] == "CANCELLED"


def test_search_finds_nothing_for_an_unknown_id(paged: Paged) -> None:
    assert paged.ask("/api/search", message="x") == {"found": [], "rows": []}
    for nothing in ("", "  "):
        assert paged.ask("/api/search", 400, message=nothing)["what"].startswith("message: wanted")
    assert paged.ask("/api/search", 400)["error"] == "MessageError"


def test_search_of_a_level_message_has_no_handle(bench: Bench, paged: Paged) -> None:
    receipt = bench.store.put("orders", b"x", level=3)
    [found] = paged.ask("/api/search", message=receipt.message_id)["found"]
    assert (found["state"], found["where"], found["handle"]) == ("pending", "level", "")


def test_body_is_shortened_for_display(bench: Bench, paged: Paged) -> None:
    for body, shown, is_text, is_cut in (
        (b"", "", True, False),
        (b"line\n\tline", "line\n\tline", True, False),
        (b"\x00\x01", "00 01", False, False),
        (b"\xff" * 64, " ".join(["ff"] * 64), False, False),
        (b"\xff" * 65, " ".join(["ff"] * 64), False, True),
        (b"x" * 400, "x" * 400, True, False),
        (b"x" * 401, "x" * 400, True, True),
        ("€".encode() * 2000, "€" * 400, True, True),
        (b"\x1b[2J", "1b 5b 32 4a", False, False),
    ):
        receipt = bench.store.put("orders", body, delay=60)
        bench.turn()
        [found] = paged.ask("/api/search", message=receipt.message_id)["found"]
        told = found["message"]
        assert (told["body"], told["body_is_text"]) == (shown, is_text)
        assert (told["body_is_cut"], told["body_bytes"]) == (is_cut, len(body))


def test_search_needs_a_topic_when_the_index_is_off(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "plain", small(index_enabled=False))
    paged = Paged.of(bench.store)
    receipt = bench.store.put("orders", b"x", delay=60)
    [found] = paged.ask("/api/search", message=receipt.message_id)["found"]
    assert (found["handle"], found["message"]) == (receipt.handle, None)
    assert paged.ask("/api/search", message="key") == {"found": [], "rows": []}
    bench.store.put("other", b"x", delay=60)
    assert "choose one" in paged.ask("/api/search", 400, message=receipt.message_id)["what"]
    assert paged.ask("/api/search", message=receipt.message_id, topic="orders")["found"]
    assert paged.ask("/api/search", message=receipt.handle)["found"]
    bench.close()


# --- cancel ---------------------------------------------------------------------------------------


def test_cancel_requires_the_message_id(bench: Bench, paged: Paged) -> None:
    first, second = (bench.store.put("t", b"x", delay=60) for _ in range(2))
    told = paged.cancel(400, handle=first.handle, confirm=second.message_id)
    assert told["what"].startswith("confirm: wanted the id of the handle's message")
    assert bench.store.stats()["pending_messages"] == 2
    for result in ("CANCELLED", "ALREADY_CANCELLED"):
        told = paged.cancel(handle=first.handle, confirm=first.message_id)
        assert told == {"result": result, "message_id": first.message_id, "topic": "t"}
    assert [one.message_id for one in bench.store.pending()] == [second.message_id]
    bench.turn(61 * SECOND)
    told = paged.cancel(handle=second.handle, confirm=second.message_id)
    assert told["result"] == "ALREADY_DELIVERED"


def test_cancel_rejects_invalid_requests(bench: Bench, paged: Paged) -> None:
    bench.store.put("t", b"x", delay=60)
    for body in (
        *({}, {"handle": "x"}, {"handle": "x", "confirm": None}, {"handle": 7, "confirm": "x"}),
        {"handle": "", "confirm": ""},
        {"handle": "x" * 5000, "confirm": "x"},
        {"handle": "djEg", "confirm": "x"},
    ):
        assert paged.cancel(400, **body)["error"] == "MessageError"
    for raw in (b"", b"[]", b"{", b"\xff", b"[" * 10_000, b"null"):
        headers = {**BEARER, "Origin": ORIGIN, "Content-Type": "application/json"}
        answer = paged.client.post("/api/cancel", content=raw, headers=headers)
        assert answer.status_code == 400, answer.text
        assert answer.json()["what"].startswith("cancel: wanted ")
    assert bench.store.stats()["pending_messages"] == 1


def test_cancel_rejects_form_data(bench: Bench, paged: Paged) -> None:
    receipt = bench.store.put("t", b"x", delay=60)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    headers = {**BEARER, "Origin": ORIGIN, **form}
    given = urlencode({"handle": receipt.handle, "confirm": receipt.message_id}).encode()
    assert paged.client.post("/api/cancel", content=given, headers=headers).status_code == 415
    assert bench.store.stats()["pending_messages"] == 1


def test_cancel_is_rejected_when_read_only(bench: Bench) -> None:
    paged = Paged.of(bench.store, read_only=True)
    receipt = bench.store.put("t", b"x", delay=60)
    assert paged.source.about()["read_only"]
    told = paged.cancel(403, handle=receipt.handle, confirm=receipt.message_id)
    assert told["what"] == "cannot cancel: this dashboard is read-only"
    assert bench.store.stats()["pending_messages"] == 1
    assert paged.ask("/api/search", message=receipt.handle)["found"]


def test_requests_report_a_closed_store(bench: Bench, paged: Paged) -> None:
    receipt = bench.store.put("t", b"x", delay=60)
    bench.close()
    assert paged.ask("/api/search", 503, message=receipt.message_id)["error"] == "ClosedError"
    assert paged.ask("/api/rows", 503, begin_ms=0, end_ms=1)["error"] == "ClosedError"
    assert paged.cancel(503, handle=receipt.handle, confirm=receipt.message_id)["error"] == (
        "ClosedError"
    )
    answer = paged.client.get("/", params={"token": TOKEN})
    assert answer.status_code == 200, "the page itself says what is wrong"


# --- shards ---------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[ShardBench]:
    made = ShardBench(tmp_path / "shards", 3)
    yield made
    made.close()


def test_shards_are_shown_as_one_store(shards: ShardBench) -> None:
    paged = Paged.of(shards.store)
    receipts = [shards.store.put("t", b"x", delay=60, keys=f"k{k}") for k in range(12)]
    shards.turn()
    assert paged.source.about()["shards"] == 3
    told = paged.now()
    assert (told["pending"], sum(told["ring"]["counts"])) == (12, 12)
    rows = paged.ask("/api/rows", begin_ms=NOW, end_ms=NOW + 61 * SECOND)["rows"]
    assert {one["handle"] for one in rows} == {one.handle for one in receipts}
    for one in receipts:
        for name in (one.handle, one.message_id):
            [found] = paged.ask("/api/search", message=name)["found"]
            assert (found["shard"], found["handle"]) == (one.shard, one.handle)
    [row] = paged.ask("/api/search", message="k7")["rows"]
    assert row["message_id"] == receipts[7].message_id
    assert paged.cancel(handle=receipts[7].handle, confirm=row["message_id"])["result"] == (
        "CANCELLED"
    )
    assert shards.store.stats()["pending_messages"] == 11
    plain = receipts[0].receipt.handle
    assert paged.ask("/api/search", message=plain) == {"found": [], "rows": []}
    assert paged.cancel(400, handle=plain, confirm=receipts[0].message_id)["error"]
