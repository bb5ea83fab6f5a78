"""The real RocketMQ in a Java process: brokers on directories, controlled by lines of JSON.

The Java part is in tests/interop/rocketmq (`make test-interop` builds it). One process runs several
brokers. Killing the process leaves its directories as `kill -9` does.

Thread safety: one thread sends requests.
Raises: BrokerError with the broker's message.
"""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from timerstore import StoreConfig

_BUILT = Path(__file__).resolve().parents[2] / "interop" / "rocketmq" / "target"
_OPENED_TO_RUN = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
Answer = dict[str, Any]


class BrokerError(Exception):
    """An error that a broker returned."""


class BrokerMessage(NamedTuple):
    """A message as a broker reads it."""

    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    flag: int
    properties: dict[str, str]
    body: bytes


def need_rocketmq() -> None:
    """Skip the test if RocketMQ is not built; fail it where RocketMQ is required."""
    if not (_BUILT / "classpath").exists() or shutil.which("java") is None:
        if os.environ.get("INTEROP") == "required":
            pytest.fail("RocketMQ is not built: make test-interop builds it")
        pytest.skip("NOT TESTED WITH A REAL BROKER: RocketMQ is not built; make test-interop")


def as_broker_config(config: StoreConfig) -> dict[str, Any]:
    """Return our settings under a broker's names."""
    return {
        "brokerName": config.broker_name,
        "mappedFileSizeCommitLog": config.commit_log_segment_bytes,
        "mappedFileSizeTimerLog": config.timer_log_segment_bytes,
        "mappedFileSizeConsumeQueue": config.queue_segment_bytes,
        "maxHashSlotNum": config.index_slot_count,
        "maxIndexNum": config.index_entry_count,
        "maxMessageSize": config.message_bytes_max,
        "messageDelayLevel": config.level_delays,
        "timerPrecisionMs": config.precision_ms,
        "timerRollWindowSlot": config.roll_window_slots,
    }


class RocketMQ:
    """One Java process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "rocketmq.log"
        classpath = f"{_BUILT / 'classes'}:{(_BUILT / 'classpath').read_text().strip()}"
        options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        limits = ("diskSpaceWarningLevelRatio", "diskSpaceCleanForciblyRatio")  # a disk may be full
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                ["java", *options, *_OPENED_TO_RUN, f"-Duser.home={folder}",
                 *(f"-Drocketmq.broker.{name}=0.99" for name in limits),
                 "-cp", classpath, "interop.Main"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip

    def ask(self, do: str, broker: str = "", **given: Any) -> Answer:
        """Send one request, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"do": do, "broker": broker, **given}
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BrokerError(f"the Java process ended: {self.log.read_text()[-2000:]}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise BrokerError(answer["error"])
        return answer

    def open(self, broker: str, root: Path, config: StoreConfig, **more: Any) -> None:
        """Start a broker on a directory."""
        self.ask("open", broker, dir=str(root), config={**as_broker_config(config), **more})

    def close(self, *brokers: str) -> None:
        """Shut brokers down concurrently, as their operators would."""
        self.ask("close", brokers=brokers)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def send(self, broker: str, messages: Iterable[Answer]) -> list[Answer]:
        """Send messages (topic, body, queue_id, properties) to a broker; return its answers."""
        given = [{**one, "body": base64.b64encode(one["body"]).decode()} for one in messages]
        answers: list[Answer] = self.ask("send", broker, messages=given)["sent"]
        for one in answers:
            if one["code"] != 0:
                raise BrokerError(one["remark"])
        return answers

    def recall(self, broker: str, topic: str, handle: str) -> None:
        """Cancel by a handle."""
        answer = self.ask("recall", broker, topic=topic, handle=handle)
        if answer["code"] != 0:
            raise BrokerError(answer["remark"])

    def messages(self, broker: str, topic: str, queue_id: int) -> list[BrokerMessage]:
        """Return every message of a queue.

        Raises:
            BrokerError: a message cannot be read.
        """
        answer = self.ask("messages", broker, topic=topic, queue_id=queue_id)
        if answer["unreadable"]:
            raise BrokerError(f"{topic}/{queue_id}: unreadable at {answer['unreadable']}")
        return [_message(one) for one in answer["messages"]]

    def query(self, broker: str, topic: str, keys: list[str]) -> list[list[BrokerMessage]]:
        """Return the messages that the index finds for each key."""
        found = self.ask("query", broker, topic=topic, keys=keys)["found"]
        return [[_message(one) for one in messages] for messages in found]

    def committed(self, broker: str, group: str, topic: str, queue_id: int) -> int:
        """Return a group's offset, or -1 without one."""
        answer = self.ask("committed", broker, group=group, topic=topic, queue_id=queue_id)
        return int(answer["offset"])

    def wait_until(self, time_ms: int) -> None:
        """Let it run until a time of the wall clock."""
        time.sleep(max(0.0, time_ms / 1000 - time.time()))


def _message(one: Answer) -> BrokerMessage:
    body = base64.b64decode(one.pop("body"))
    return BrokerMessage(**one, body=body)


def now_ms() -> int:
    """Return the time of the wall clock, which brokers use."""
    return int(time.time() * 1000)
