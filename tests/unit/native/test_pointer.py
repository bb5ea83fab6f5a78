"""An address that is kept may become garbage together with the view it was taken from."""

import gc
import subprocess
import sys
from typing import Any

import pytest

from timerstore._engine.base.native import address, ffi, pointer


def test_pointer_keeps_its_buffer_alive() -> None:
    view = memoryview(bytearray(b"abc"))[1:]
    kept = pointer("uint8_t[]", view)
    del view
    gc.collect()
    assert bytes(ffi.buffer(kept)) == b"bc"
    assert len(address(memoryview(b""))) == 0


@pytest.mark.parametrize("buffer", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_any_buffer_is_used_without_a_copy(buffer: Any) -> None:
    kept = pointer("uint8_t[]", buffer)
    assert bytes(ffi.buffer(kept)) == b"abc"
    assert kept == ffi.from_buffer("uint8_t[]", buffer)


CYCLE = """
import gc
from timerstore._engine.base.native import address
for _ in range(100):
    for size in (1, 1000):
        cycle = [memoryview(bytes(size))]
        cycle += [address(cycle[0]), cycle]
        del cycle
        gc.collect()
        cycle = []
        cycle += [address(memoryview(bytes(size))), cycle]
        del cycle
        gc.collect()
print("alive")
"""


@pytest.mark.more
def test_view_and_address_in_one_cycle_are_collected() -> None:
    """With ffi.from_buffer alone, Python 3.11.7 dies of it (gh-77894)."""
    done = subprocess.run(
        [sys.executable, "-c", CYCLE], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
