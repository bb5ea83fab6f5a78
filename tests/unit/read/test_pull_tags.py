"""pull and pull_batch with tags: the same messages as a naive filter gives, in bounded steps."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import timerstore
from tests.support.bench import Bench
from tests.support.broker import fixtures as broker
from tests.support.inside import PULL_BUFFER_BYTES_MAX, PULL_STEP_UNITS_MAX
from timerstore import CorruptError, Message, MessageError, PullStatus, StoreConfig, TimerStore
from timerstore._engine.read.filter import TagFilter
from timerstore.testing import ManualClock

FOUND, NONE = PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE
# "Aa" and "BB" share a hash, as do "AaAa", "AaBB" and "BBBB".
TAGS = [None, "Aa", "BB", "AaAa", "AaBB", "BBBB", "c"]
TAG_ROW = random.Random(4).choices(TAGS, k=150)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimerStore]:
    """150 messages with the tags of TAG_ROW, bodies of many sizes."""
    bench = Bench(tmp_path_factory.mktemp("tagged") / "store")
    for k, tag in enumerate(TAG_ROW):
        bench.store.put("t", b"%d;" % k + b"x" * (k * 37 % 400), tags=tag, keys=f"k{k}")
    bench.store.put("t", b"untagged", queue_id=1)
    bench.turn()
    yield bench.store
    bench.close()


def everything(store: TimerStore, tags: str, max_count: int, **how: Any) -> list[Message]:
    """Pull by message and by column in turn, and check each answer."""
    found: list[Message] = []
    offset, by_column = 0, False
    while True:
        by_column = not by_column
        got = (store.pull_batch if by_column else store.pull)(
            "t", 0, offset, max_count=max_count, tags=tags, **how
        )
        messages = list(got) if by_column else list(got.messages)  # type: ignore[union-attr]
        assert (got.min_offset, got.max_offset) == (0, 150)
        if got.status is PullStatus.OFFSET_OVERFLOW_ONE:
            assert got.next_offset == offset == 150
            return found
        assert got.status is (FOUND if messages else NONE)
        assert len(messages) <= max_count
        assert offset < got.next_offset <= 150
        assert all(offset <= m.queue_offset < got.next_offset for m in messages)
        found += messages
        offset = got.next_offset


@given(
    wanted=st.lists(st.sampled_from([*TAGS[1:], "none has it"]), min_size=1, max_size=4),
    max_count=st.sampled_from([1, 2, 7, 32, 149, 150, 10**9]),
    step=st.sampled_from([1, 3, 64, 16_384]),
    scanned=st.sampled_from([1, 5, 40, 65_536]),
    room=st.sampled_from([300, 1500, 64 << 20]),
)
def test_pull_returns_the_same_as_a_naive_filter(
    tagged: TimerStore, wanted: list[str], max_count: int, step: int, scanned: int, room: int
) -> None:
    everyone = list(tagged.pull_batch("t", 0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*PULL_STEP_UNITS_MAX, step)
        patch.setattr(*PULL_BUFFER_BYTES_MAX, room)
        patch.setattr(TagFilter, "units_max", scanned)
        got = everything(tagged, " || ".join(wanted), max_count)
    assert got == [message for message in everyone if message.tags in wanted]


@pytest.mark.parametrize("tags", [None, "", "*", " * "])
def test_everything_passes(tagged: TimerStore, tags: str | None) -> None:
    assert len(tagged.pull_batch("t", 0, 0, tags=tags)) == 150
    assert tagged.pull("t", 0, 150, tags=tags).status is PullStatus.OFFSET_OVERFLOW_ONE


@pytest.mark.parametrize("scanned", [1, 2, 149, 150, 151])
def test_next_offset_is_after_scanned_messages_when_none_matches(
    tagged: TimerStore, scanned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TagFilter, "units_max", scanned)
    got = tagged.pull("t", 0, 0, max_count=1, tags="none has it")
    assert (got.status, got.messages, got.next_offset) == (NONE, (), min(scanned, 150))


def test_message_with_a_colliding_hash_is_scanned(
    tagged: TimerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TagFilter, "units_max", 20)
    at = next(k for k in range(149) if TAG_ROW[k] == "BB" and TAG_ROW[k + 1] != "Aa")
    assert "Aa" in TAG_ROW[at : at + 20]
    got = tagged.pull("t", 0, at, max_count=1, tags="Aa")
    assert got.messages[0].queue_offset == TAG_ROW.index("Aa", at)


def test_full_page_ends_after_its_last_message_or_at_the_next_candidate(
    tagged: TimerStore,
) -> None:
    first, second = [k for k, tag in enumerate(TAG_ROW) if tag == "c"][:2]
    got = tagged.pull("t", 0, 0, max_count=1, tags="c")
    assert [m.queue_offset for m in got.messages] == [first]
    assert first < got.next_offset <= second


def test_untagged_messages_match_no_tag(tagged: TimerStore) -> None:
    for tags in ("a", "f5a5a608"):  # the second has hash 0, as a unit without a tag
        got = tagged.pull("t", 1, 0, tags=tags)
        assert (got.status, got.next_offset) == (NONE, 1)


def test_other_statuses_stay(tagged: TimerStore) -> None:
    assert tagged.pull("t", 0, 151, tags="Aa").status is PullStatus.OFFSET_OVERFLOW_BADLY
    assert tagged.pull("t", 0, 150, tags="Aa").status is PullStatus.OFFSET_OVERFLOW_ONE


@pytest.mark.parametrize("name", ["pull", "pull_batch"])
def test_invalid_filter_changes_nothing(bench: Bench, name: str) -> None:
    bench.store.put("t", b"here")
    bench.turn()
    with bench.refused(MessageError, "a tag at character 5 "):
        getattr(bench.store, name)("t", 0, 0, tags="a ||")
    with bench.refused(MessageError, "offset: .*; tags: "):
        getattr(bench.store, name)("t", 0, -1, tags=7)


def test_damage_after_a_match_is_raised_by_the_next_pull(bench: Bench) -> None:
    for k in range(3):
        bench.store.put("t", b"body %d" % k, tags="a" if k < 2 else "b")
    bench.turn()
    bench.store.flush()
    (segment,) = (bench.root / "commitlog").iterdir()
    data = segment.read_bytes()
    at = data.index(b"body 1")
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"BODY")
    got = bench.store.pull("t", 0, 0, tags="a")
    assert ([m.body for m in got.messages], got.next_offset) == ([b"body 0"], 1)
    with pytest.raises(CorruptError):
        bench.store.pull("t", 0, 1, tags="a")
    assert bench.store.pull("t", 0, 0, tags="b").messages[0].body == b"body 2"  # never read it
    with segment.open("r+b") as file:
        file.seek(at)
        file.write(b"body")


def test_delivered_messages_keep_their_tag(bench: Bench) -> None:
    for k in range(20):
        bench.store.put("t", b"%d" % k, delay=k % 5 + 1, tags=TAG_ROW[k])
    bench.turn(3_000)
    bench.turn(3_000)
    got = bench.store.pull("t", 0, 0, tags="Aa||c")
    assert len(got.messages) == sum(tag in {"Aa", "c"} for tag in TAG_ROW[:20])
    assert {m.tags for m in got.messages} == {"Aa", "c"}


@pytest.mark.parametrize("name", ["levels", "version-5.1.4", "version-5.4.0"])
def test_broker_messages_are_found_by_tag(name: str, tmp_path: Path) -> None:
    """All topics, also those of timers and of levels, whose units carry due times and no hashes."""
    messages, _, _ = broker.opened(name)
    config = StoreConfig(**broker.about(name)["store_config"], flush="async")
    clock = ManualClock(max(line["store_ms"] for line in messages))
    root = broker.unpack(name, tmp_path)
    kinds = set()
    with timerstore.open(root, config, clock=clock, threads=False) as store:
        timerstore.testing.Stepper(store).step("dispatch")
        queues = sorted({(line["topic"], line["queue_id"]) for line in messages})
        for topic, queue_id in queues:
            wanted = [
                line["queue_offset"]
                for line in messages
                if (line["topic"], line["queue_id"]) == (topic, queue_id)
                and line["properties"].get("TAGS") in {"tag0", "tag2"}
            ]
            got, offset = [], 0
            while (
                batch := store.pull_batch(topic, queue_id, offset, tags="tag0 || tag2")
            ).status in {FOUND, NONE, PullStatus.OFFSET_TOO_SMALL}:
                got += batch.queue_offset.tolist()
                offset = batch.next_offset
            assert got == wanted
            if wanted:
                kinds.add(topic)
    assert "rmq_sys_wheel_timer" in kinds
    assert name != "levels" or "SCHEDULE_TOPIC_XXXX" in kinds
