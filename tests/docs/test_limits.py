"""The page on limits: each number is that of the code, and calls end where the page says."""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.bench import Bench, small
from tests.support.inside.limits import (
    BACKOFF_MS_MAX,
    CLIENT_TIME_S_MAX,
    FETCH_BYTES_MAX,
    HELLO_BYTES_MAX,
    PULL_BUFFER_BYTES_MAX,
    QUERY_BYTES_MAX,
    SMALL_FILE_BYTES_MAX,
)
from tests.support.snippets import GUIDES
from timerstore import ConfigError, MessageError, StoreConfig
from timerstore._engine.base import message_fields
from timerstore._engine.format import lease, recurring_json, store_paths
from timerstore._engine.leases import backoff, receive_request
from timerstore._engine.read import query
from timerstore._engine.read.filter import SqlFilter, TagFilter
from timerstore._engine.recurring import definition
from timerstore._engine.write import ingester
from timerstore.api import StoreApi
from timerstore.errors import BusyError, FlowControlError
from timerstore.net import connections
from timerstore.net.server_limits import ServerLimits
from timerstore.shards import shard_paths
from timerstore.telemetry import metric_families
from timerstore.types.messages import PullStatus

DEFAULT, SERVER = StoreConfig(), ServerLimits()
LIMITS = (GUIDES / "limits.md").read_text()
LEASED_NAMES = message_fields.TOPIC_BYTES_MAX - len("%RETRY%") - len("|")


def _own_properties_max(config: StoreConfig) -> int:
    """Return the most bytes of tags, keys and properties, without the topic's length."""
    return config.properties_bytes_max - message_fields.PROPERTIES_HEADROOM_BYTES


WANTED = {
    "body, as stored and as inflated": f"{DEFAULT.message_bytes_max:,} bytes",
    "record: body, properties and about 100 bytes": f"{DEFAULT.record_bytes_max:,} bytes",
    "tags, keys and properties together, without the length of the topic": (
        f"{_own_properties_max(DEFAULT):,} bytes"
    ),
    "properties of a record, with those of the engine": f"{DEFAULT.properties_bytes_max:,} bytes",
    "key of a query": f"{query.KEY_BYTES_MAX:,} bytes",
    "message id of the caller": f"{message_fields.MESSAGE_ID_BYTES_MAX} bytes",
    "priority": f"0 to {message_fields.PRIORITY_MAX}",
    "message group": f"{message_fields.MESSAGE_GROUP_BYTES_MAX} bytes",
    "delay": f"{DEFAULT.delay_ms_max:,} ms",
    "delay levels": "64",
    "records of an atomic batch": f"{DEFAULT.group_bytes_max:,} bytes",
    "message ids that are remembered": f"{DEFAULT.dedupe_ids_max:,}",
    "time for which they are remembered": f"{DEFAULT.dedupe_window_ms:,} ms",
    "messages of one wheel slot": "no limit" if DEFAULT.slot_messages_max == 0 else "",
    "topic of a put": f"{message_fields.TOPIC_BYTES_MAX} bytes",
    "topic or group of a read or of a consumer": "255 characters",
    "group and topic of a lease, together": f"{LEASED_NAMES} characters",
    "name of a recurring message": "64 characters",
    "source of `ingest`": f"{ingester.SOURCE_BYTES_MAX} bytes",
    "source of rows for shards, and `write_id`": f"{shard_paths.SOURCE_BYTES_MAX} bytes",
    "topics of a store": "no limit",
    "their file `config/topics.json`, and each other side file": (
        f"{SMALL_FILE_BYTES_MAX.value:,} bytes"
    ),
    "queues of a topic": f"{message_fields.QUEUE_COUNT_MAX:,}",
    "queues of a topic that a put creates": f"{DEFAULT.topic_queue_count}",
    "queues of a topic that a broker made": f"{store_paths.QUEUE_COUNT_MAX:,}",
    "groups of a store": "no limit",
    "topics and groups in metrics": f"{metric_families.TOPICS_MAX}",
    "shards of a directory": f"{shard_paths.SHARD_COUNT_MAX:,}",
    "recurring messages of a store": "no limit",
    "their file `config/timerstoreRecurring.json`": f"{SMALL_FILE_BYTES_MAX.value:,} bytes",
    "interval of a recurring message, at least": f"{definition.EVERY_MS_MIN:,} ms",
    "text of `cron`": f"{definition.CRON_BYTES_MAX} characters",
    "lease, and `delay` of `nack`": f"{DEFAULT.delay_ms_max:,} ms",
    "`max_attempts`": f"{receive_request.ATTEMPTS_MAX:,}",
    "`max_attempts` by default": f"{receive_request.ReceiveRequest('t', 'g').max_attempts}",
    "`max_count` of `receive`": f"{receive_request.COUNT_MAX:,}",
    "topics of one `receive`": f"{receive_request.TOPICS_MAX:,}",
    "steps of a back-off": f"{backoff.STEPS_MAX}",
    "longest back-off": f"{BACKOFF_MS_MAX.value:,} ms",
    "reason of `nack(error=)` and `bury(error=)`": f"{lease.ERROR_BYTES_MAX:,} bytes",
    "messages of one `pull` or `pull_batch`, together": (f"{PULL_BUFFER_BYTES_MAX.value:,} bytes"),
    "messages of one `poll` or `receive`, together": (f"{FETCH_BYTES_MAX.value:,} bytes"),
    "messages of one `query`, together": f"{QUERY_BYTES_MAX.value:,} bytes",
    "queue entries that a `pull` with `tags` checks": f"{TagFilter.units_max:,}",
    "queue entries that a `pull` with `sql` checks": f"{SqlFilter.units_max:,}",
    "`wait`": "below 1,000,000,000 s",
    "descriptors": "`ulimit -n` of the process",
    "part of them that a server keeps back for its store": "1/4",
    "connections of a server": f"{SERVER.connections_max:,}",
    "frame: a call or an answer": f"{SERVER.frame_bytes_max:,} bytes",
    "first message of a client": (f"{HELLO_BYTES_MAX.value:,} bytes"),
    "times of a client: `retry_for`, `connect_timeout`, `call_timeout`": (
        f"{CLIENT_TIME_S_MAX.value:,.0f} s"
    ),
}
"""By the first column of the page's tables: the second column. A number that is written out here is
checked by a call below.
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Open a small store, and verify and close it at the end."""
    one = Bench(tmp_path / "s")
    yield one
    one.close()


def test_limits_of_the_page_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", LIMITS, re.MULTILINE)
    assert {name: value for name, value in rows if name != "limit"} == WANTED


def test_settings_named_on_the_page_exist() -> None:
    names = set(re.findall(r"`([a-z_]+_(?:max|ms|bytes|count|levels))`", LIMITS))
    assert len(names) > 10
    names -= {"max_count"}  # an argument
    assert {one for one in names if not hasattr(DEFAULT, one) and not hasattr(SERVER, one)} == set()


@pytest.mark.parametrize(("kept_part", "end"), [(4, 768), (8, 896)])
def test_part_of_the_descriptors_is_kept_back(
    monkeypatch: pytest.MonkeyPatch, kept_part: int, end: int
) -> None:
    monkeypatch.setattr(connections.resource, "getrlimit", lambda _which: (1024, 4096))
    assert connections.descriptors_end(kept_part) == end
    assert connections.descriptors_end() == 768


def test_limits_of_a_server_on_the_page_of_operations_are_those_of_the_code() -> None:
    text = (GUIDES / "operations.md").read_text()
    table = text.split("**Limits** ([server_limits.py]")[1].split("\n\n")[1]
    units = {"s": 1, "KiB": 1 << 10, "MiB": 1 << 20}
    told = {}
    for names, values in re.findall(r"^\| (`[^|]+?) \| ([^|]+?) \|", table, re.MULTILINE):
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split("; "), strict=True):
            number, _, unit = value.partition(" ")
            told[name] = int(number.replace(",", "")) * units.get(unit, 1)
    assert told == {name: getattr(SERVER, name) for name in ServerLimits.__dataclass_fields__}


Call = Callable[[Bench, int], Any]
DELAY_S = DEFAULT.delay_ms_max / 1000
PROPERTIES = _own_properties_max(small()) - len("t") - len("p") - 2

EDGES: dict[str, tuple[int, Call]] = {
    "topic": (127, lambda bench, n: bench.store.put("t" * n, b"")),
    "topic of a read": (255, lambda bench, n: bench.store.committed("t" * n, "g")),
    "group": (255, lambda bench, n: bench.store.committed("t", "g" * n)),
    "group of a lease": (119 - len("t"), lambda bench, n: bench.store.receive("t", "g" * n)),
    "queue": (1023, lambda bench, n: bench.store.put("q", b"", queue_id=min(n, 1024))),
    "message id": (128, lambda bench, n: bench.store.put("t", b"", message_id="i" * n)),
    "priority": (9, lambda bench, n: bench.store.put("p", b"", priority=n)),
    "message group": (128, lambda bench, n: bench.store.put("t", b"", message_group="m" * n)),
    "property": (PROPERTIES, lambda bench, n: bench.store.put("t", b"", properties={"p": "v" * n})),
    "key of a query": (32_767, lambda bench, n: bench.store.query("t", "k" * n)),
    "delay": (
        DEFAULT.delay_ms_max,
        lambda bench, n: bench.store.put("t", b"", deliver_ms=bench.clock.now_ms + n),
    ),
    "name of a recurring message": (
        64,
        lambda bench, n: bench.store.put_every("t", b"", every=1, name="n" * n),
    ),
    "max_count": (10_000, lambda bench, n: bench.store.receive("t", "g", max_count=n)),
    "attempts": (1_000_000, lambda bench, n: bench.store.receive("t", "g", max_attempts=n)),
    "topics of a receive": (
        1000,
        lambda bench, n: receive_request.check_topics([f"t{k}" for k in range(n)], "g"),
    ),
    "wait": (999_999_999, lambda bench, n: bench.store.pull("t", 0, 0, wait=float(n))),
    "source of ingest": (255, lambda bench, n: bench.store.ingested("s" * n)),
    "source of shards": (240, lambda bench, n: shard_paths.source_component("s" * n)),
}
"""The largest number that a call takes. The next one raises MessageError."""


@pytest.mark.parametrize("name", EDGES)
def test_call_works_at_its_limit_and_not_beyond(bench: Bench, name: str) -> None:
    largest, call = EDGES[name]
    bench.store.put("t", b"")
    bench.turn()
    with bench.refused(MessageError):
        call(bench, largest + 1)
    call(bench, largest)


def test_body_has_its_limit_and_that_of_a_log_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(message_bytes_max=1000))
    bench.store.put("t", bytes(1000))
    bench.store.put_many("t", [bytes(1000)])
    for put in (
        lambda: bench.store.put("t", bytes(1001)),
        lambda: bench.store.put_many("t", [b"", bytes(1001)]),
    ):
        with bench.refused(MessageError, "wanted at most 1000 bytes"):
            put()
    bench.close()
    config = small(commit_log_segment_bytes=4096)
    assert config.record_bytes_max == config.group_bytes_max == 4080
    bench = Bench(tmp_path / "t", config)
    largest = message_fields.room_bytes(config.record_bytes_max, b"t")
    bench.store.put("t", bytes(largest))
    with bench.refused(MessageError, f"message: wanted at most {largest} bytes of body"):
        bench.store.put("t", bytes(largest + 1))
    bench.close()


def test_limits_that_pass_raise_retryable_errors(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(slot_messages_max=1, dedupe_ids_max=4096))
    bench.store.put("t", b"", delay=1)
    with pytest.raises(FlowControlError) as slot:
        bench.store.put("t", b"", delay=1)
    bench.store.put_many("t", [b""] * 4096, message_ids=[f"{k}" for k in range(4096)])
    with pytest.raises(BusyError, match="dedupe_ids_max") as ids:
        bench.store.put("t", b"", message_id="more")
    assert slot.value.retryable
    assert ids.value.retryable
    bench.clock.advance(small().dedupe_window_ms + 1)
    bench.turn()
    assert not bench.store.put("t", b"other contents", message_id="0").duplicate
    bench.close()


def test_settings_beyond_their_range_are_rejected(tmp_path: Path) -> None:
    assert small(level_delays=" ".join(["1s"] * 64), topic_queue_count=1024)
    for wrong in ({"level_delays": " ".join(["1s"] * 65)}, {"topic_queue_count": 1025}):
        with pytest.raises(ConfigError):
            small(**wrong)
    with pytest.raises(ConfigError, match="wanted 1 to 1024 shards, got 1025"):
        timerstore.open_shards(tmp_path / "shards", 1025)


def test_level_past_the_last_means_the_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "s", small(level_delays="1s 2s"))
    bench.store.put("t", b"", level=10**9)
    bench.turn(1999)
    assert bench.bodies() == []
    bench.turn(1)
    assert bench.bodies() == [b""]
    bench.close()


def test_reason_of_a_dead_letter_is_cut_at_a_whole_character(bench: Bench) -> None:
    reasons = {"é" * 512: "é" * 512, "é" * 513: "é" * 512, "x" + "é" * 512: "x" + "é" * 511}
    for reason, kept in reasons.items():
        bench.store.put("t", b"")
        bench.turn()
        (message,) = bench.store.receive("t", "g", max_attempts=1)
        bench.store.nack(message, error=reason)
        bench.turn()
        assert [*bench.store.dead_letters("g")][-1].error == kept


def test_recurring_messages_have_the_limit_of_their_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest size counts, so that the numbers of later runs have a place in the file."""
    bench = Bench(tmp_path / "s")
    path = bench.root / "config" / "timerstoreRecurring.json"
    bodies = {"a": bytes(30_000), "b": bytes(30_000)}
    for name, body in bodies.items():
        bench.store.put_every("t", body, every=60, name=name)
    limit = largest_recurring_file(path.read_bytes())
    assert len(path.read_bytes()) < limit < len(path.read_bytes()) + 200
    assert bench.store.cancel_every("b")
    before = path.read_bytes()
    monkeypatch.setattr(*SMALL_FILE_BYTES_MAX, limit - 1)
    with bench.refused(MessageError, rf"their file.*wanted {limit - 1}.*got {limit}"):
        bench.store.put_every("t", bodies["b"], every=60, name="b")
    assert path.read_bytes() == before
    assert [one.name for one in bench.store.recurring()] == ["a"]
    monkeypatch.setattr(*SMALL_FILE_BYTES_MAX, limit)
    bench.store.put_every("t", bodies["b"], every=60, name="b")
    with bench.refused(MessageError, "their file"):
        bench.store.put_every("t", b"", every=60, name="c")
    bench.turn(3_600_000)
    bench.reopen()
    assert [one.name for one in bench.store.recurring()] == ["a", "b"]
    assert bench.store.cancel_every("a")
    bench.store.put_every("t", b"", every=60, name="c")
    bench.close()


def largest_recurring_file(text: bytes) -> int:
    """Return the size that the file can grow to without another definition."""
    definitions = recurring_json.read(text)
    grown = [
        one._replace(run_count=2**63 - 1, planned_ms=2**63 - 1, run_ms=2**63 - 1)
        for one in definitions
    ]
    return len(recurring_json.write(grown))


@pytest.mark.parametrize("kind", ["embedded", "read-only", "remote"])
def test_pull_with_a_filter_that_matches_nothing_does_not_wait(tmp_path: Path, kind: str) -> None:
    """The docstring of `pull` says so. Only a pull at the end of the queue waits."""
    text = " ".join(str(StoreApi.pull.__doc__).split())
    assert "returns at once, whatever `wait` is" in text
    assert "returns at once, whatever `wait` is" in (GUIDES / "features.md").read_text()
    root = tmp_path / "s"
    with timerstore.open(root, small()) as owner:
        owner.put_many("t", [b"x"] * 5, tags="a")
        owner.put_many("sql", [b"x"] * 1025)
        owner.flush()
        if kind == "embedded":
            _check_pulls(owner)
            return
        if kind == "read-only":
            with timerstore.open(root, read_only=True) as store:
                _check_pulls(store)
            return
        with (
            timerstore.net.serve(owner, socket=str(tmp_path / "socket")) as server,
            timerstore.connect(server.urls[0]) as store,
        ):
            _check_pulls(store)


def _check_pulls(store: Any) -> None:
    for_ever = 100_000.0  # a pull that waited would not end
    for offset in (0, 3):
        found = store.pull("t", 0, offset, tags="b", max_count=1, wait=for_ever)
        assert (found.status, found.messages) == (PullStatus.NO_MATCHED_MESSAGE, ())
        assert found.next_offset == 5
    found = store.pull("sql", 0, 0, sql="a > 1", max_count=1, wait=for_ever)
    assert (found.status, found.next_offset) == (PullStatus.NO_MATCHED_MESSAGE, 1024)
    at_end = store.pull("t", 0, 5, tags="b", wait=0.001)
    assert (at_end.status, at_end.next_offset) == (PullStatus.OFFSET_OVERFLOW_ONE, 5)


def test_waiting_pull_goes_on_when_messages_do_not_match(bench: Bench) -> None:
    """A pull that has begun to wait returns for a match, or at its end after those it checked."""
    bench.store.put_many("t", [b"x"] * 5, tags="a")
    bench.turn()
    ends = {6: ("a", PullStatus.NO_MATCHED_MESSAGE, False), 7: ("b", PullStatus.FOUND, True)}
    for next_offset, (tags, status, wakes) in ends.items():
        waiting = bench.store.begin_pull("t", 0, next_offset - 1, tags="b", wait=60.0)
        woken: list[bool] = []
        assert waiting.answer(waiting.look()) is None
        assert waiting.enter(lambda woken=woken: woken.append(True))  # type: ignore[misc]
        bench.store.put("t", b"new", tags=tags)
        bench.turn()
        assert bool(woken) is wakes
        if not wakes:
            bench.clock.advance(60_000)
        waiting.leave()
        answer = waiting.answer(waiting.look())
        assert answer is not None
        waiting.end()
        assert (answer.status, answer.next_offset) == (status, next_offset)


def test_limits_of_rocketmq_clients_are_those_of_the_code() -> None:
    pytest.importorskip("grpc")
    from timerstore.rocketmq.rocketmq_limits import RocketmqLimits

    section = (GUIDES / "rocketmq-clients.md").read_text().split("\n## Limits\n")[1]
    shown = {}
    for names, values in re.findall(r"^\| (`.*?`) \| (.*?) \|", section, re.MULTILINE):
        texts = values.split(", ")
        shown |= dict(zip(re.findall("`(.*?)`", names), texts, strict=True))
    wanted = {
        name: f"{value >> 20} MiB" if "bytes" in name else f"{value:,}"
        for name, value in asdict(RocketmqLimits()).items()
    }
    assert shown == wanted
