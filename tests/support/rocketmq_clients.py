"""A process with clients of plain gRPC, for tests that kill it.

    python -m tests.support.rocketmq_clients HOST:PORT COUNT

Each client has a stream, a leased message of the topic t, and a poll of the topic u. Then the
process writes "ready".
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from tests.support.rocketmq_bench import RawCaller, seconds
from timerstore.rocketmq.definitions import messages

_never = threading.Event()


def _settings() -> Iterator[Any]:
    yield messages.TelemetryCommand(settings=messages.Settings(client_type=2))
    _never.wait()


def main(address: str, count: int) -> None:
    """Make the clients, and wait for the end."""
    kept = []
    for k in range(count):
        one = RawCaller(address, f"{os.getpid()}-{k}")
        stream = one.telemetry(_settings())
        next(stream)
        leased = one.receive(batch_size=1, auto_renew=True, long_polling_timeout=seconds(5))
        poll = one.receive_request("u", long_polling_timeout=seconds(500)).SerializeToString()
        kept.append((one, stream, leased, one.begin("ReceiveMessage", poll, 600)))
    print("ready", flush=True)
    _never.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
