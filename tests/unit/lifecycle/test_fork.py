"""`with` blocks that a forked child leaves: what it raised comes out, and the parent goes on."""

import gc
from pathlib import Path

import pytest

from tests.support.amounts import sample
from tests.support.bench import Bench
from tests.support.programs import run_child, run_program

FORKING = """
import asyncio, os, sys
import timerstore, timerstore.aio
from timerstore import ForkedError, dashboard
from timerstore.telemetry import prometheus
path = sys.argv[1]

def fork(act):
    child = os.fork()
    if child == 0:
        act()
    else:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

def run(main):
    # A child ends within the loop: the clean-up of asyncio would disturb the loop of the parent.
    parent = os.getpid()
    async def ending():
        try:
            await main()
        except BaseException as error:
            if os.getpid() == parent: raise
            left = isinstance(error, SystemExit)
            if not left: sys.stderr.write(f"\\n{type(error).__name__}: {error}\\n")
            sys.stderr.flush()
            os._exit(error.code if left else 1)
    asyncio.run(ending())

def leave(): sys.exit(7)
def fail(): raise KeyError("its own")
def fall(): pass
act = globals()[sys.argv[2]]
"""
PROGRAMS = {
    "store": """
with timerstore.open(path) as store:
    fork(act)
    store.put("t", b"x")
""",
    "read_only": """
timerstore.open(path).close()
with timerstore.open(path, read_only=True) as store:
    fork(act)
    store.topics()
""",
    "shards": """
with timerstore.open_shards(path, 2) as store:
    fork(act)
    store.put_many("t", [b"x"] * 9)
""",
    "consumers": """
with timerstore.open(path + "/a") as store, timerstore.open_shards(path + "/b", 2) as shards:
    with store.consumer("t", "g") as one, shards.consumer("t", "g") as other:
        fork(act)
        one.poll(); other.poll()
""",
    "leases": """
with timerstore.open(path) as store:
    store.put("t", b"x")
    consumer = store.lease_consumer("t", "g")
    message = next(consumer)
    with consumer.handling(message):
        fork(act)
""",
    "servers": """
with timerstore.open(path) as store, dashboard.start(store), prometheus.serve(store):
    fork(act)
    store.put("t", b"x")
""",
    "async": """
async def main():
    async with timerstore.aio.open(path) as store, store.consumer("t", "g") as consumer:
        fork(act)
        await store.put("t", b"x")
        assert await consumer.poll(wait=30)
run(main)
""",
    "async_entered": """
async def main():
    async with await timerstore.aio.open(path) as store:
        await store.put("t", b"x")
        message = (await store.receive("t", "g", wait=30))[0]
        async with await store.consumer("u", "g"):
            async with store.lease_consumer("t", "g").handling(message):
                fork(act)
run(main)
""",
}


@pytest.mark.parametrize("name", sample(PROGRAMS, "programs that fork"))
@pytest.mark.parametrize(
    ("act", "code", "error"),
    [("leave", 7, None), ("fail", 1, "KeyError: 'its own'"), ("fall", 1, "ForkedError")],
)
def test_forked_child_exits_with_its_error(
    tmp_path: Path, name: str, act: str, code: int, error: str | None
) -> None:
    quiet = ("-W", "ignore::DeprecationWarning")  # of a fork with threads, from Python 3.12 on
    ended = run_program(FORKING + PROGRAMS[name], tmp_path / "s", act, options=quiet)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"{code}\n"
    if error is None:
        assert not ended.stderr
    else:
        assert error in ended.stderr.splitlines()[-1] or f"\n{error}" in ended.stderr


def test_store_of_a_child_keeps_its_files_when_the_child_drops_its_parents_store(
    tmp_path: Path,
) -> None:
    """The maps of the child's files do not take the addresses of maps of its parent."""
    benches = [Bench(tmp_path / "parent")]

    def open_another() -> bool:
        child = Bench(tmp_path / "child")
        benches.clear()
        gc.collect()
        child.store.put("t", b"x")
        child.turn()
        return child.bodies("t") == [b"x"]

    assert run_child(open_another, patience_s=60) == 0
    benches[0].close()
