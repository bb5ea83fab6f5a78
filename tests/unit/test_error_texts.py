"""Errors name the argument, the expected and the found value."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import timerstore
from tests.support.bench import NOW, Bench, small
from timerstore import MessageError, RowBatch
from timerstore.errors import ConfigError, NotPendingError

HALF = r"wanted text without half a surrogate pair.*, got '\\ud800'"
PUT: list[tuple[dict[str, Any], str]] = [
    ({"keys": b"k"}, r"keys: wanted text or several, got bytes b'k'; decode it"),
    ({"keys": bytearray(b"k")}, r"keys: wanted .*, got bytearray"),
    ({"keys": [b"k"]}, r"keys: wanted text, got bytes b'k'"),
    ({"keys": ["a", 5]}, r"keys: wanted text, got int 5"),
    ({"keys": 5}, r"keys: wanted text or several, got int 5"),
    ({"keys": "a b"}, r"keys: wanted text without spaces .*, got 'a b'"),
    ({"keys": "a\x01"}, r"keys: wanted text without spaces and control .*, got 'a\\x01'"),
    ({"keys": "\ud800"}, f"keys: {HALF}"),
    ({"tags": ""}, r"tags: wanted text that is not empty.*, got ''"),
    ({"tags": b"a"}, r"tags: wanted text.*, got bytes b'a'"),
    ({"tags": "a\n"}, r"tags: wanted text without control characters.*, got 'a\\n'"),
    ({"tags": "\ud800"}, f"tags: {HALF}"),
    ({"message_id": "\ud800"}, f"message_id: {HALF}"),
    ({"message_id": ""}, r"message_id: wanted text .*not empty, got ''"),
    ({"message_id": "a b"}, r"message_id: wanted text without spaces .*, got 'a b'"),
    ({"message_id": b"a"}, r"message_id: wanted text, got bytes b'a'"),
    ({"message_id": "i" * 129}, r"message_id: wanted at most 128 bytes, got 129: 'iii"),
    ({"properties": 5}, r"properties: wanted a mapping, got int 5"),
    ({"properties": {"a": 5}}, r"property 'a': wanted text as value, got int 5"),
    ({"properties": {"a": "\ud800"}}, "property 'a': wanted .*as value, got '.ud800'"),
    ({"properties": {"a": "\x01"}}, r"property 'a': wanted a value without control .*'\\x01'"),
]


@pytest.mark.parametrize(("given", "said"), PUT)
@pytest.mark.parametrize("replaces", [False, True])
def test_put_error_names_argument_expected_and_found(
    bench: Bench, given: dict[str, Any], said: str, replaces: bool
) -> None:
    more = (
        {"key": "k", "replace": True} if replaces and not {"keys", "message_id"} & {*given} else {}
    )
    with bench.refused(MessageError, said):
        bench.store.put("t", b"x", **given, **more)


@pytest.mark.parametrize(
    ("topic", "said"),
    [
        ("\ud800", r"topic: wanted ASCII .*, got '\\ud800' in '\\ud800'"),
        (b"t", r"topic: wanted text, got bytes b't'"),
        ("", r"topic: wanted 1 to 127 bytes, got 0: ''"),
        ("t" * 128, r"topic: wanted 1 to 127 bytes, got 128: 'ttt"),
    ],
)
def test_topic_error_names_expected_and_found(bench: Bench, topic: Any, said: str) -> None:
    for call in (
        lambda: bench.store.put(topic, b"x"),
        lambda: bench.store.put_many(topic, [b"x"]),
        lambda: bench.store.put_every(topic, b"x", every=60),
    ):
        with bench.refused(MessageError, said):
            call()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("text", r"wanted bytes, got str 'text'; encode it first"),
        (5, r"wanted bytes, got int 5"),
        (None, r"wanted bytes, got None"),
        ([1], r"wanted bytes, got list \[1\]"),
    ],
)
def test_body_error_names_expected_and_found(bench: Bench, body: Any, said: str) -> None:
    with bench.refused(MessageError, f"body: {said}"):
        bench.store.put("t", body)
    with bench.refused(MessageError, rf"bodies\[1\]: {said}"):
        bench.store.put_many("t", [b"x", body])


@pytest.mark.parametrize(
    ("every", "said"),
    [
        (-1, r"every: wanted at least 1000 ms, 1 second, got -1"),
        (0, r"every: wanted at least 1000 ms, 1 second, got 0"),
        (0.5, r"every: wanted at least 1000 ms, 1 second, got 0.5"),
        (float("nan"), r"every: wanted a finite number of seconds, got nan"),
        (float("inf"), r"every: wanted a finite number of seconds, got inf"),
        (10**12, r"every: wanted at most \d+ ms, got"),
        ("1", r"every: wanted seconds or a timedelta, got '1'"),
    ],
)
def test_every_error_names_expected_and_found(bench: Bench, every: Any, said: str) -> None:
    with bench.refused(MessageError, said):
        bench.store.put_every("t", b"x", every=every)


def test_handle_error_names_expected_and_found(bench: Bench, tmp_path: Path) -> None:
    with timerstore.open(tmp_path / "other", small(), threads=False) as other:
        stranger = other.put("t", b"x", delay=1000)
    handle = stranger.handle
    for given in (stranger, handle):
        assert bench.store.cancel(given) == "UNKNOWN"
        with pytest.raises(
            NotPendingError, match=r"wanted the handle of a pending .*; got UNKNOWN"
        ):
            bench.store.reschedule(given, delay=5)
    for given, said in (
        (handle[:-3], r"handle: wanted URL-safe base64 text, complete as put returned it"),
        (handle[:20], r"handle: wanted `v1` and four fields or more, as in djEg..., got 3"),
        ("garbage", r"handle: wanted URL-safe .*, got 'garbage'"),
        (5, r"handle: wanted a receipt of a put, or the text of its handle, got int 5"),
    ):
        for call in (bench.store.cancel, bench.store.reschedule):
            with bench.refused(MessageError, said):
                call(given, **({"delay": 5} if call == bench.store.reschedule else {}))


@pytest.mark.parametrize("what", ["nothing: there is no", "an empty folder", "a file", "a folder "])
@pytest.mark.parametrize("call", [timerstore.restore, timerstore.check_backup])
def test_restore_error_names_what_was_found(
    tmp_path: Path, what: str, call: Callable[..., Any]
) -> None:
    path = tmp_path / "backup"
    if what == "a file":
        path.write_bytes(b"x")
    elif "folder" in what:
        path.mkdir()
        if what == "a folder ":
            (path / "x").touch()
    given = [path] if call is timerstore.check_backup else [path, tmp_path / "new"]
    with pytest.raises(ConfigError, match=rf"backup: wanted .*backup\.json.*, got {what}.*{path}"):
        call(*given)
    assert not (tmp_path / "new").exists()


AS_ANOTHER = """
import os, sys, pathlib
import timerstore
import timerstore.shards  # first: the other user may not read the files of Python
path = pathlib.Path(sys.argv[1])
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
for call in (
    lambda: timerstore.open_shards(path / "shards"),
    lambda: timerstore.open(path / "one"),
    lambda: timerstore.open(path / "one", read_only=True),
    lambda: timerstore.verify_directory(path / "one"),
    lambda: timerstore.repair(path / "one", path / "new"),
    lambda: timerstore.check_backup(path / "one"),
):
    try:
        call()
    except timerstore.TimerStoreError as error:
        print(error)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user may enter: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_error_of_missing_permission_names_path_user_and_mode(shared: Path) -> None:
    timerstore.open_shards(shared / "shards", 2, small()).close()
    (shared / "shards").chmod(0o777)
    (shared / "shards" / "cluster.json").chmod(0)
    timerstore.open(shared / "one", small()).close()
    (shared / "one").chmod(0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER, str(shared)],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    finally:
        (shared / "one").chmod(0o700)
    first, *others = done.stdout.splitlines()
    assert "Permission denied (EACCES); at" in first
    assert "shards/cluster.json; wanted access for user" in first
    assert f"cluster.json of user {os.getuid()}, group" in first
    assert "mode ----------" in first
    assert len(others) == 5
    for line in others:
        assert "Permission denied (EACCES); at" in line
        assert f"/one of user {os.getuid()}, group" in line
        assert "mode d---------" in line


# --- tags that a filter can name ---

UNNAMED = ["a||b", "||", "a |||", " a", "a ", " ", "*", "|| "]
NAMED = ["a", "a|b", "|", "a b", "**", "a*", "\u00a0a\u3000", "a\x7f", "\u20ac", "x" * 300, "|a|"]


@pytest.mark.parametrize("tag", UNNAMED)
def test_tag_that_no_filter_can_name_is_an_error(bench: Bench, tag: str) -> None:
    said = r"tags: wanted one tag that a filter can name: no \|\| in it, no space at either end"
    for call in (
        lambda: bench.store.put("t", b"x", tags=tag),
        lambda: bench.store.put_many("t", [b"x"], tags=tag),
        lambda: bench.store.put_every("t", b"x", every=60, tags=tag),
        lambda: bench.store.put("t", b"x", tags=tag, key="k", replace=True),
    ):
        with bench.refused(MessageError, said):
            call()
    with bench.refused(MessageError, rf"{said}.*row 1 has"):
        bench.store.ingest("s", 0, [tagged(["a", tag, "b"])])


@pytest.mark.parametrize("tag", NAMED)
def test_filter_finds_each_tag_that_put_takes(bench: Bench, tag: str) -> None:
    bench.store.put("t", b"a", tags=tag)
    bench.store.put("t", b"not", tags="other")
    bench.store.ingest("s", 0, [tagged(["|", tag, "|x", ""])])
    bench.turn()
    for asked in (tag, f"z || {tag}"):
        found = bench.store.pull("t", 0, 0, tags=asked).messages
        assert found
        assert {one.tags for one in found} == {tag}


def tagged(tags: list[str]) -> RowBatch:
    texts = [tag.encode() for tag in tags]
    offsets = np.cumsum([0, *map(len, texts)])
    count = len(tags)
    return RowBatch(
        "t", b"x" * count, np.arange(count + 1), np.full(count, NOW), tags=b"".join(texts),
        tag_offsets=offsets,
    )  # fmt: skip
