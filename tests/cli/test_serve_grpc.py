"""Command `serve --grpc`: its options, its errors, and SIGTERM."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

import timerstore
from tests.support.command_line import COMMAND, CommandLine, environment
from tests.support.until import until
from timerstore.cli.exits import Exit

pytest.importorskip("grpc")

from tests.support.rocketmq_bench import RawCaller, resource, seconds
from timerstore.rocketmq.definitions import Code, messages


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
