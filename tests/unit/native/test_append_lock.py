"""The append lock, which C also takes; test_lock.py tests its behaviour as an ordinary lock."""

import threading

import pytest

from timerstore._engine.base.native import AppendLock, ffi, lib, raise_status
from timerstore.errors import FailedError, ReentrantCallError

PATIENCE_S = 30.0


def test_second_acquire_by_the_same_thread_raises_and_keeps_the_lock() -> None:
    lock = AppendLock()
    with lock:
        with pytest.raises(ReentrantCallError, match="same thread"), lock:
            raise AssertionError("it was taken twice")
        assert lock.locked()
    assert not lock.locked()


def test_release_by_another_thread_raises() -> None:
    lock, told = AppendLock(), []

    def let_go() -> None:
        try:
            lock.__exit__(None, None, None)
        except RuntimeError as error:
            told.append(str(error))

    with lock:
        thread = threading.Thread(target=let_go)
        thread.start()
        thread.join(PATIENCE_S)
        assert lock.locked()
    with pytest.raises(RuntimeError, match="has it not"):
        lock.__exit__(None, None, None)
    assert "has it not" in told[0]


def test_append_lock_takes_no_arguments() -> None:
    with pytest.raises(TypeError):
        AppendLock(1)


def test_c_call_by_the_owner_returns_reentrant() -> None:
    lock, log = AppendLock(), ffi.new("ts_log *")
    log.lock = ffi.cast("void *", lock.address)
    status, need = ffi.new("int32_t *"), ffi.new("int64_t *")
    null = ffi.NULL
    with lock:
        assert lib.ts_put_many_locking(log, null, null, 0, 1, 1, 0, null, null, status, need) == 0
        assert status[0] == lib.TS_REENTRANT
        assert lock.locked()
    with pytest.raises(FailedError):
        raise_status(status[0], "put")
