"""Thousands of polls wait at a time: none is cancelled, they use little memory and no processor
time."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import timerstore
import timerstore.net
import timerstore.rocketmq
from tests.support.bench import small
from tests.support.rocketmq_bench import RawCaller
from tests.support.until import until
from timerstore.rocketmq.definitions import Code

POLLS = 4000
IDLE_CPU_MAX = 0.1
POLL_BYTES_MAX = 30 << 10
PATIENCE_S = 120

CLIENT = """
import sys
from tests.support.rocketmq_bench import RawCaller, seconds
address, count = sys.argv[1], int(sys.argv[2])
caller = RawCaller(address)
raw = caller.receive_request(long_polling_timeout=seconds(400)).SerializeToString()
polls = [caller.begin("ReceiveMessage", raw, timeout=500) for _ in range(count)]
sys.stdin.readline()
print(caller.call("NotifyClientTermination").status.code)
print(*(one.status.code for poll in polls for one in poll))
"""


def memory_bytes() -> int:
    """Return how much memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.more
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_connected", [False, True])
def test_waiting_polls_are_all_answered_and_use_little(tmp_path: Path, is_connected: bool) -> None:
    with (
        timerstore.open(tmp_path / "store", small()) as store,
        timerstore.net.serve(store, socket=tmp_path / "s") as owner,
        timerstore.connect(owner.urls[0]) as connected,
        timerstore.rocketmq.serve(
            connected if is_connected else store, address="127.0.0.1:0"
        ) as server,
    ):
        caller = RawCaller(server.address)
        assert caller.receive() == []
        caller.close()
        before = memory_bytes()
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, server.address, str(POLLS)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as client:  # fmt: skip
            until(lambda: server.stats()["net_waiting_requests"] == POLLS, PATIENCE_S)
            # Of a connected one this process is the owner, too, which keeps each poll once more.
            poll_bytes_max = POLL_BYTES_MAX * (1 + is_connected)
            assert memory_bytes() - before < POLLS * poll_bytes_max
            begin, cpu = time.monotonic(), time.process_time()
            time.sleep(2)
            assert (time.process_time() - cpu) / (time.monotonic() - begin) < IDLE_CPU_MAX
            out, _ = client.communicate("\n", timeout=PATIENCE_S)
        goodbye, *codes = map(int, out.split())
        assert goodbye == Code.OK
        assert codes == [Code.MESSAGE_NOT_FOUND] * POLLS
