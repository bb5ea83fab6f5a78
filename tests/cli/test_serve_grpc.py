"""Command `serve --grpc`: its options, its errors, and SIGTERM."""

import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import timerstore
import timerstore.net
from tests.support.certificates import make_secrets
from tests.support.command_line import COMMAND, CommandLine, environment
from tests.support.until import until
from timerstore.cli.exits import Exit

pytest.importorskip("grpc")

import grpc

from tests.support.rocketmq_bench import RawCaller, resource, seconds
from timerstore.rocketmq.definitions import Code, messages

MESSAGES = 300


@contextmanager
def serving(*words: object) -> Iterator[tuple[Any, Any]]:
    """Run `serve` in a process; return it and what it shows. It is killed at the end."""
    with subprocess.Popen(
        [*COMMAND, "serve", *map(str, words), "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            yield child, json.loads(child.stdout.readline() or "null")
        finally:
            child.kill()


def test_serve_grpc_answers_clients_until_sigterm(ts: CommandLine, tmp_path: Path) -> None:
    path, unix, groups = ts.init(), tmp_path / "x.sock", tmp_path / "groups.toml"
    with timerstore.open(path) as store:
        store.put("known", b"x")
    groups.write_text("[default]\nmax_attempts = 1\n")
    words = [
        *COMMAND, "serve", path, "--socket", unix, "--grpc", "127.0.0.1:0", "--json",
        "--advertise", "shop.example:8081", "--no-auto-create", "--groups-file", groups,
    ]  # fmt: skip
    with subprocess.Popen(
        [str(one) for one in words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
    ) as child:  # fmt: skip
        assert child.stdout is not None
        socket, grpc = json.loads(child.stdout.readline())["urls"]
        assert grpc.startswith("grpc://127.0.0.1:")
        caller = RawCaller(grpc.removeprefix("grpc://"))
        [queue] = caller.call("QueryRoute", topic=resource("known")).message_queues
        assert queue.broker.endpoints.addresses[0].host == "shop.example"
        assert caller.send("other").status.code == Code.TOPIC_NOT_FOUND
        settings = messages.Settings(subscription=messages.Subscription(group=resource("g")))
        [told] = caller.telemetry(iter([messages.TelemetryCommand(settings=settings)]))
        assert told.settings.backoff_policy.max_attempts == 1
        assert [one.body for one in caller.receive("known")] == [b"x"]
        poll = caller.receive_request("known", long_polling_timeout=seconds(15))
        waiting = caller.begin("ReceiveMessage", poll.SerializeToString())
        with timerstore.connect(socket) as remote:
            until(lambda: remote.stats()["net_waiting_requests"])
        child.send_signal(signal.SIGTERM)
        assert [one.status.code for one in waiting] == [Code.MESSAGE_NOT_FOUND]
        _, errors = child.communicate(timeout=30)
        caller.close()
    assert child.returncode == Exit.FINE, errors
    assert not (path / "abort").exists(), "the store was not closed"


def test_serve_grpc_errors_say_what_to_do(ts: CommandLine, tmp_path: Path) -> None:
    path, keys = ts.init(), tmp_path / "keys"
    keys.write_text("shop a-secret-of-the-shop\n")
    grpc = ("--grpc", "127.0.0.1:0")
    assert "wanted --grpc" in ts("serve", path, "--ui", "--keys-file", keys).err
    assert "wanted --grpc" in ts("serve", path, "--ui", "--no-auto-create").err
    assert "chmod 600" in ts("serve", path, *grpc, "--keys-file", keys).err
    assert "HOST:PORT" in ts("serve", path, "--grpc", "nonsense").err
    assert "not loopback" in ts("serve", path, "--grpc", "0.0.0.0:0").err
    assert "--tls-key" in ts("serve", path, *grpc, "--tls-cert", keys).err
    assert "cannot read" in ts("serve", path, *grpc, "--groups-file", tmp_path / "none").err
    assert "--snapshot" in ts("serve", path, *grpc, "--snapshot").err
    assert not (path / "abort").exists()


def test_serve_grpc_of_shards_is_an_error(ts: CommandLine) -> None:
    answer = ts("serve", ts.init("--shards", "2"), "--grpc", "127.0.0.1:0")
    assert answer.code == Exit.ERROR
    assert "shards" in answer.err


def test_serve_grpc_of_a_served_store(ts: CommandLine, tmp_path: Path) -> None:
    made = make_secrets(tmp_path)
    access: dict[str, Any] = {"tls": (made.cert, made.key), "token_file": made.token}
    with (
        timerstore.open(ts.init()) as store,
        timerstore.net.serve(store, tcp="127.0.0.1:0", **access) as server,
    ):
        url, own = server.urls[0], ("--grpc", "127.0.0.1:0", "--tls-ca", made.cert)
        assert url.startswith("tls://")
        with serving(url, *own, "--token-file", made.token, "--no-auto-create") as (child, shown):
            assert set(shown) == {"urls"}
            caller = RawCaller(shown["urls"][0].removeprefix("grpc://"))
            assert caller.send("orders").status.code == Code.TOPIC_NOT_FOUND
            store.put("orders", b"first")
            assert caller.send("orders", b"second").status.code == Code.OK
            assert sorted(one.body for one in caller.receive("orders")) == [b"first", b"second"]
            child.send_signal(signal.SIGTERM)
            _, errors = child.communicate(timeout=30)
            caller.close()
        assert child.returncode == Exit.FINE, errors
        assert store.backlog("orders", "g").leased == 2
        assert "token" in ts("serve", url, *own).err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--socket", "x"], "goes with --ui and --grpc, not with --socket"),
        (["--tcp", "127.0.0.1:0"], "goes with --ui and --grpc, not with --socket"),
        (["--metrics", "127.0.0.1:0"], "not with --socket, --tcp, --metrics"),
        (["--snapshot"], "--snapshot: a store that is not open cannot be served"),
        (["--token-file", "f"], "--token-file: wanted tcp:// or tls:// in"),
        (["--tls-ca", "f"], "--tls-ca: wanted tls:// in place of PATH"),
        (["--user", "root"], "wanted --socket with them"),
        (["--tls-cert", "f"], "wanted --tls-cert and --tls-key together"),
        (["-c", "flush=async"], "settings are those of the process"),
    ],
)
def test_serve_grpc_of_a_served_store_has_its_own_options(
    ts: CommandLine, tmp_path: Path, words: list[str], text: str
) -> None:
    answer = ts("serve", f"unix://{tmp_path}/none", "--grpc", "127.0.0.1:0", *words)
    assert answer.code == Exit.ERROR
    assert text in answer.err


def test_kill_of_the_owner_under_serve_grpc_loses_and_doubles_nothing(
    ts: CommandLine, tmp_path: Path
) -> None:
    path, url = ts.init(), f"unix://{tmp_path}/s"
    owner = (path, "--socket", tmp_path / "s")
    wanted = {b"%d" % k for k in range(MESSAGES)}
    found: set[bytes] = set()
    acked: Counter[bytes] = Counter()
    half = threading.Event()

    def send(address: str, first: int) -> None:
        caller = RawCaller(address)
        for k in range(first, MESSAGES, 4):
            # As a client does that got no answer: again, with the same id.
            while not is_sent(caller, k):
                pass
        caller.close()

    def is_sent(caller: RawCaller, k: int) -> bool:
        with suppress(grpc.RpcError):
            return bool(caller.send(body=b"%d" % k, message_id=f"m{k}").status.code == Code.OK)
        return False

    def receive(address: str) -> None:
        caller = RawCaller(address)
        options = {"invisible_duration": seconds(2), "long_polling_timeout": seconds(1)}
        while found != wanted:
            with suppress(grpc.RpcError):
                for one in caller.receive(**options):
                    [entry] = caller.ack(one.system_properties.receipt_handle)
                    acked[one.body] += entry.status.code == Code.OK
                    found.add(one.body)
            if len(found) > MESSAGES // 3:
                half.set()
        caller.close()

    with serving(*owner) as (first, _), serving(url, "--grpc", "127.0.0.1:0") as (_, shown):
        address = shown["urls"][0].removeprefix("grpc://")
        work = [*((send, (address, k)) for k in range(4)), *([(receive, (address,))] * 2)]
        threads = [threading.Thread(target=one, args=given, daemon=True) for one, given in work]
        for one in threads:
            one.start()
        assert half.wait(30)
        first.kill()
        first.wait()
        with serving(*owner), timerstore.connect(url) as store:
            for one in threads:
                one.join(60)
            assert found == wanted
            assert max(acked.values()) == 1, "no message is acknowledged twice"
            stored = [
                message.body
                for queue in range(store.topics()["t"])
                for message in store.pull("t", queue, 0, max_count=2 * MESSAGES).messages
            ]
            assert Counter(stored) == Counter(wanted)
            assert store.backlog("t", "g").ready == 0
