"""Thousands of polls wait at a time: none is cancelled, and they use no processor time."""

import time
from pathlib import Path

import pytest

import timerstore
import timerstore.rocketmq
from tests.support.bench import small
from tests.support.rocketmq_bench import RawCaller, seconds
from timerstore.rocketmq.definitions import Code

POLLS = 4000
IDLE_CPU_MAX = 0.1


@pytest.mark.more
@pytest.mark.timeout(300)
def test_waiting_polls_are_all_answered(tmp_path: Path) -> None:
    with (
        timerstore.open(tmp_path / "store", small()) as store,
        timerstore.rocketmq.serve(store, address="127.0.0.1:0") as server,
    ):
        caller = RawCaller(server.address)
        raw = caller.receive_request(long_polling_timeout=seconds(200)).SerializeToString()
        polls = [caller.begin("ReceiveMessage", raw, timeout=250) for _ in range(POLLS)]
        end = time.monotonic() + 120
        while server.stats()["net_waiting_requests"] < POLLS:
            assert time.monotonic() < end, server.stats()
            time.sleep(0.05)
        begin, cpu = time.monotonic(), time.process_time()
        time.sleep(2)
        assert (time.process_time() - cpu) / (time.monotonic() - begin) < IDLE_CPU_MAX
        assert caller.call("NotifyClientTermination").status.code == Code.OK
        codes = [[one.status.code for one in poll] for poll in polls]
        assert codes == [[Code.MESSAGE_NOT_FOUND]] * POLLS
        caller.close()
