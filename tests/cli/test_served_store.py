"""Commands with the address of a server in place of a path, against the same store."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.bench import small
from tests.support.command_line import CommandLine
from timerstore import TimerStore
from timerstore.cli.command import COMMANDS
from timerstore.cli.exits import Exit

TOKEN = "a-token-for-the-tests"
NEED_FILES = {
    "init": ["{}"],
    "repair": ["{}", "target"],
    "doctor": ["{}"],
    "convert": ["{}", "--to", "rocketmq"],
    "restore": ["backup", "{}"],
    "dump": ["{}"],
    "export": ["{}", "x.jsonl"],
    "ingest": ["{}"],
    "import": ["{}", "rows.jsonl"],
}
NO_STORE = {"bench", "completion", "demo"}
"""Commands without PATH."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[TimerStore]:
    with timerstore.open(tmp_path / "orders.store", small(flush="sync")) as one:
        yield one


@pytest.fixture
def url(store: TimerStore, tmp_path: Path) -> Iterator[str]:
    with timerstore.net.serve(store, socket=tmp_path / "s") as server:
        yield server.urls[0]


def test_messages_are_put_changed_and_listed(ts: CommandLine, store: TimerStore, url: str) -> None:
    first = ts.fine("put", url, "orders", "a", "--in", "1h", "--key", "k", "--json").row
    ts.fine("put", url, "orders", "now")
    assert store.cancel(first["handle"]) == "CANCELLED"
    handle = ts.fine("put", url, "orders", "b", "--in", "1h", "--key", "k2", "--json").row["handle"]
    moved = ts.fine("move", url, handle, "--in", "2h", "--json").row
    assert ts.fine("explain", url, moved["handle"], "--json").row["state"] == "pending"
    assert ts.fine("explain", url, moved["message_id"], "--topic", "orders").out
    rows = ts.fine("ls", url, "--json").rows
    assert rows == [{"topic": "orders", "queues": 1, "pending": 1, "delivered": 1}]
    assert "orders" in ts.fine("ls", url).out
    assert ts.fine("count", url).out == "1\n"
    assert ts.fine("count", url, "--topic", "orders", "--json").row["pending"] == 1
    assert ts.fine("count", url, "--until", "2030-01-01").out in ("0\n", "1\n")
    assert "no topic 'none'" in ts.fine("count", url, "--topic", "none").err
    assert sum(one["count"] for one in ts.fine("histogram", url, "--json").rows) == 1
    assert ts.fine("cancel", url, "--topic", "orders", "--key", "k2").out.startswith("CANCELLED")
    assert ts("cancel", url, "--topic", "orders", "--key", "k2").code == Exit.NOT_SO


def test_messages_are_read(ts: CommandLine, store: TimerStore, url: str) -> None:
    store.put_many("t", [b"1", b"2", b"3"])
    assert ts.fine("get", url, "t", "--body").out == "1\n2\n3\n"
    assert ts.fine("get", url, "t", "--offset", 1, "-n", 1, "--body").out == "2\n"
    assert ts.fine("get", url, "t", "--group", "g", "-n", 2, "--body").out == "1\n2\n"
    assert store.committed("t", "g") == {0: 2}
    assert ts.fine("follow", url, "t", "--all", "-n", 3, "--body").out == "1\n2\n3\n"
    assert not ts.fine("follow", url, "t", "--for", "200ms", "--body").out
    assert not any(
        group.startswith("timerstore_follow") for _, group in store._engine.offsets.known()
    )
    assert ts("get", url, "none").code == Exit.NOT_SO


def test_leases_and_dead_letters(ts: CommandLine, store: TimerStore, url: str) -> None:
    store.put_many("t", [b"1", b"2", b"3"])
    leased = ts.fine("receive", url, "t", "--group", "g", "-n", 3, "--json").rows
    one, two, three = (row["receipt"] for row in leased)
    assert ts.fine("ack", url, one).out.startswith("ACKED")
    longer = ts.fine("extend", url, two, "--json").row["receipt"]
    assert ts.fine("nack", url, longer).out.startswith("NACKED")
    assert ts.fine("bury", url, three).out.startswith("BURIED")
    store.flush()
    [letter] = ts.fine("dead-letters", url, "g", "--json").rows
    assert letter["body"] == "3"
    assert ts.fine("requeue", url, "g", letter["receipt"]).out == "requeued 1 message\n"
    assert ts("dead-letters", url, "g").code == Exit.NOT_SO


def test_groups_are_listed(ts: CommandLine, store: TimerStore, url: str) -> None:
    assert "no group has committed" in ts.fine("ls", url, "--groups").err
    assert "no group has committed or leased" in ts.fine("backlog", url).err
    store.put_many("t", [b"1", b"2", b"3"])
    one, two = store.receive("t", "g", max_count=2, lease=600)
    store.nack(one, delay=600)
    found = ts.fine("backlog", url, "--json").row
    assert found.pop("oldest_ms") >= 0
    assert found == {
        "topic": "t", "group": "g", "ready": 1, "leased": 1, "in_backoff": 1, "dead_letters": 0,
    }  # fmt: skip
    assert "in back-off" in ts.fine("backlog", url, "--topic", "t").out
    assert not ts.fine("backlog", url, "--group", "other").out
    [shown] = ts.fine("top", url, "--once", "--json").row["groups"]
    assert (shown["group"], shown["leased"]) == ("g", 1)
    assert "groups, oldest" in ts.fine("top", url, "--once").out
    store.flush()
    rows = ts.fine("ls", url, "--groups", "--json").rows
    assert rows[0] == {"topic": "t", "group": "g", "queue": 0, "committed": 2, "behind": 1}
    store.ack(two)
    assert ts.fine("backlog", url, "--json").row["leased"] == 0


def test_backlog_of_a_closed_store_is_read(ts: CommandLine) -> None:
    path = ts.init()
    for body in ("1", "2"):
        ts.fine("put", path, "t", body)
    ts.fine("receive", path, "t", "--group", "g", "--lease", "10m")
    row = ts.fine("backlog", path, "--json").row
    assert (row["ready"], row["leased"]) == (1, 1)


def test_recurring_messages(ts: CommandLine, url: str) -> None:
    ts.fine("every", url, "t", "x", "--every", "1h", "--name", "n")
    assert [one["name"] for one in ts.fine("every", url, "--json").rows] == ["n"]
    assert ts.fine("every", url, "--cancel", "n").out == "ENDED n\n"


def test_topic_is_deleted(ts: CommandLine, store: TimerStore, url: str) -> None:
    store.put("gone", b"x", delay=60)
    assert ts.fine("delete-topic", url, "gone").out == "deleted gone\n"
    assert "gone" not in store.topics()
    answer = ts("delete-topic", url, "gone", "--json")
    assert (answer.code, answer.row) == (Exit.NOT_SO, {"topic": "gone", "deleted": False})
    assert "reserved for the engine" in ts("delete-topic", url, "rmq_sys_wheel_timer").err


def test_pace_limits_and_releases_a_topic(ts: CommandLine, store: TimerStore, url: str) -> None:
    store.put_many("t", [b"x"] * 30, delay=1)
    row = ts.fine("pace", url, "t=1", "--for", "1500ms", "--json").row
    assert row["pending"] > 20
    row = ts.fine("pace", url, "t=1000000", "--drain", "--for", "20s", "--json").row
    assert row["pending"] == 0
    assert "topic_rates" in ts("pace", url, "t").err


def test_backup_and_verify(ts: CommandLine, store: TimerStore, url: str, tmp_path: Path) -> None:
    store.put("t", b"x", delay=60)
    assert ts.fine("verify", url).out.startswith(f"{url}: clean")
    assert ts.fine("backup", url, tmp_path / "backup", "--json").row["segment_count"] == 1
    assert ts.fine("verify", tmp_path / "backup", "--json").row["clean"]
    answer = ts("backup", url, "backup")
    assert answer.code == Exit.ERROR
    assert "wanted an absolute path" in answer.err


def test_top_shows_a_served_store(ts: CommandLine, store: TimerStore, url: str) -> None:
    store.put_many("t", [b"x"] * 5, delay=3000)
    store.put("t", b"far", delay=7 * 86_400)
    row = ts.fine("top", url, "--once", "--json").row
    assert row["stores"] == [{"url": url}]
    assert row["pending"] == 6
    assert row["on_the_wheel"]["1 h"] == 5
    assert row["on_the_wheel"]["later"] == 1
    assert row["topics"]["t"]["pending"] == 6
    screen = ts.fine("top", url, "--once").out
    assert "served" in screen
    assert "6" in screen
    assert len(ts.fine("top", url, "--json", "-n", 2, "--every", "50ms").rows) == 2


# --- access ---------------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    return file


def test_token_comes_from_a_file(
    ts: CommandLine, store: TimerStore, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with timerstore.net.serve(store, tcp="127.0.0.1:0", token_file=token_file) as server:
        [url] = server.urls
        answer = ts("count", url)
        assert answer.code == Exit.ERROR
        assert "the token is wrong" in answer.err
        assert ts.fine("count", url, "--token-file", token_file).out == "0\n"
        monkeypatch.setenv("TIMERSTORE_TOKEN_FILE", str(token_file))
        assert ts.fine("count", url).out == "0\n"
        token_file.chmod(0o644)
        assert "only its owner can read" in ts("count", url).err


def test_certificate_comes_from_a_file(
    ts: CommandLine, store: TimerStore, token_file: Path, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    given = ("--token-file", token_file)
    with timerstore.net.serve(
        store, tcp="127.0.0.1:0", tls=(cert, key), token_file=token_file
    ) as server:
        [url] = server.urls
        assert ts.fine("count", url, *given, "--tls-ca", cert).out == "0\n"
        answer = ts("count", url, *given, "--tls-ca", tmp_path / "none")
        assert answer.code == Exit.ERROR
        assert "the certificates cannot be read" in answer.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["count", "x.store", "--token-file", "f"], "--token-file: wanted tcp:// or tls:// with"),
        (["count", "x.store", "--tls-ca", "f"], "--tls-ca: wanted tcp:// or tls:// with"),
        (["count", "unix:///s", "--token-file", "f"], "--token-file: wanted tcp:// or tls:// with"),
        (["count", "tcp://h:1", "--tls-ca", "f"], "--tls-ca: wanted tls:// with it"),
        (["count", "unix:///s", "-c", "flush=async"], "settings are those of the process"),
        (["count", "http://h/x"], "wanted unix:///PATH, tcp://HOST:PORT or tls://HOST:PORT"),
        (["serve", "unix:///s", "--socket", "x"], "goes with --ui and --grpc, not with --socket"),
        (["serve", "x.store", "--ui", "--tls-ca", "f"], "wanted tls:// in place of PATH"),
    ],
)
def test_options_that_do_not_fit_are_rejected(ts: CommandLine, words: list[str], text: str) -> None:
    answer = ts(*words)
    assert answer.code == Exit.ERROR
    assert text in answer.err


def test_files_of_the_environment_do_not_matter_for_a_path(
    ts: CommandLine, store: TimerStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TIMERSTORE_TOKEN_FILE", "TIMERSTORE_TLS_CA"):
        monkeypatch.setenv(name, "/nowhere")
    assert ts.fine("count", url).out == "0\n"
    assert ts.fine("count", store.path).out == "0\n"


@pytest.mark.parametrize("name", NEED_FILES)
def test_command_that_needs_files_rejects_an_address(ts: CommandLine, name: str) -> None:
    answer = ts(name, *(word.format("unix:///run/s") for word in NEED_FILES[name]))
    assert answer.code == Exit.ERROR
    assert "wanted a path of this machine, got unix:///run/s: " in answer.err


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - NEED_FILES.keys() - NO_STORE))
def test_all_other_commands_take_an_address(ts: CommandLine, name: str) -> None:
    assert "URL" in ts.fine(name, "--help").out.partition("\n")[0]


def test_errors_of_a_served_store_have_their_exit_codes(ts: CommandLine, tmp_path: Path) -> None:
    answer = ts("count", f"unix://{tmp_path}/none", "--json")
    assert answer.code == Exit.LATER
    error: dict[str, Any] = json.loads(answer.err)
    assert error["error"] == "UnavailableError"
