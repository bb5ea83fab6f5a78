"""Stores that are closed, or are not, when the interpreter ends: it ends, and nothing is lost."""

import signal
from pathlib import Path

import pytest

import timerstore
from tests.support.amounts import sample
from tests.support.programs import run_program

OPENING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if started by `nohup`
import asyncio, atexit, os, signal, sys, threading, time, weakref
import timerstore
opened = 0
def make(**given):
    global opened
    store = timerstore.open(f"{sys.argv[1]}/{opened}", **given)
    opened += 1
    store.put("t", b"x")
    return store

class Holder:
    def __init__(self, store): self.store = store
    def __del__(self): self.store.close()

def reading(store):
    try:
        yield
    finally:
        store.close()
"""


def stores_of(root: Path, program: str, *, code: int = 0, error: str = "") -> list[Path]:
    """Run a program, check its end, and return the folders of its stores."""
    quiet = ("-W", "ignore::DeprecationWarning")  # of a fork with threads, from Python 3.12 on
    ended = run_program(OPENING + program, root, options=quiet)
    assert error in ended.stderr
    assert error or not ended.stderr
    assert ended.returncode == code
    return sorted(path for path in root.iterdir() if (path / "commitlog").exists())


def assert_there(path: Path, bodies: list[bytes], topic: str = "t") -> None:
    """Check that a topic has these messages, each once, and that the store is clean."""
    with timerstore.open(path) as store, store.consumer(topic, "check") as consumer:
        found: list[bytes] = []
        while len(found) < len(bodies):
            got = consumer.poll(wait=30)
            assert got, f"only {found} came"
            found += [one.body for one in got]
        assert found == bodies
        assert not consumer.poll()
        assert store.verify().clean


def assert_closed(paths: list[Path], count: int) -> None:
    """Check that `count` stores were closed, with one message each."""
    assert len(paths) == count
    for path in paths:
        assert not (path / "abort").exists(), f"{path.name} was not closed"
        assert_there(path, [b"x"])


@pytest.mark.more
def test_close_works_at_any_depth_of_the_call_stack(tmp_path: Path) -> None:
    program = """
atexit.register(make().close)
weakref.finalize(threading, make().close)
threading.Thread(target=make().close).start()
threading.Timer(0.01, make().close).start()
handled = make()
signal.signal(signal.SIGALRM, lambda *_: handled.close())
signal.raise_signal(signal.SIGALRM)
"""
    assert_closed(stores_of(tmp_path, program), 5)


@pytest.mark.more
def test_close_works_while_modules_are_cleared(tmp_path: Path) -> None:
    program = """
holder = Holder(make())
cycle = Holder(make()); cycle.itself = cycle
lines = reading(make()); next(lines)
more = reading(make()); next(more); ring = [more]; ring.append(ring)
threading.held = Holder(make())
timerstore.held = Holder(make())
by_hand = Holder(make(threads=False))
made = []
thread = threading.Thread(target=lambda: made.append(Holder(make())))
thread.start(); thread.join()
twice = make(); atexit.register(twice.close); second = Holder(twice)
reads = Holder(timerstore.open(by_hand.store.path, read_only=True))
"""
    assert_closed(stores_of(tmp_path, program), 9)


def test_open_store_is_closed_at_exit(tmp_path: Path) -> None:
    program = """
store = make()
consumer = store.consumer("t", "g")
leases = store.lease_consumer("t", "h")
reads = timerstore.open(store.path, read_only=True)
"""
    assert_closed(stores_of(tmp_path, program), 1)


@pytest.mark.parametrize(
    ("ending", "code", "error"),
    [
        ("sys.exit(3)", 3, ""),
        ("raise ValueError('no good')", 1, "ValueError: no good"),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_store_is_closed_at_any_end_of_the_program(
    tmp_path: Path, ending: str, code: int, error: str
) -> None:
    program = f"holder = Holder(make())\n{ending}"
    assert_closed(stores_of(tmp_path, program, code=code, error=error), 1)


def test_calls_of_daemon_threads_do_not_block_exit(tmp_path: Path) -> None:
    program = """
holder = Holder(make()); store = holder.store
def read():
    for message in store.consumer("t", "g"): pass
def put():
    try:
        while True: store.put("u", b"y")
    except timerstore.ClosedError: pass
waits = (lambda: store.pull("t", 0, 99, wait=1e6), lambda: store.receive("t", "h", wait=1e6))
for target in (read, put, put, *waits):
    threading.Thread(target=target, daemon=True).start()
"""
    assert_closed(stores_of(tmp_path, program), 1)


@pytest.mark.more
def test_blocked_call_of_a_daemon_thread_does_not_block_exit(tmp_path: Path) -> None:
    """Its store is left as after a kill, with a warning; another store is closed."""
    program = """
from timerstore._engine.calls import open_store
open_store._EXIT_WAIT_S = 0.1
holder, other = Holder(make()), make()
entered = threading.Event()
def rows():
    entered.set()
    threading.Event().wait()
    yield
threading.Thread(target=holder.store.ingest, args=("s", 0, rows()), daemon=True).start()
entered.wait()
"""
    stuck, closed = stores_of(tmp_path, program, error="has stopped another thread during a call")
    assert (stuck / "abort").exists()
    assert_there(stuck, [b"x"])
    assert_closed([closed], 1)


def test_thread_continues_after_the_main_thread(tmp_path: Path) -> None:
    program = """
shards = timerstore.open_shards(sys.argv[1] + "/shards", 2, ingest_every=None)
store = make()
def work():
    threading.main_thread().join()
    store.put("late", b"1")
    shards.put_many("late", [b"%d" % n for n in range(9)])
    shards.flush()
threading.Thread(target=work).start()
"""
    assert_closed(stores_of(tmp_path, program), 1)
    with timerstore.open_shards(tmp_path / "shards") as shards:
        assert len(shards.consumer("late", "g").poll(9, wait=30)) > 0
    assert_there(tmp_path / "0", [b"1"], "late")


@pytest.mark.more
def test_shards_and_async_stores_are_closed_at_exit(tmp_path: Path) -> None:
    program = """
import timerstore.aio
holder = Holder(timerstore.open_shards(sys.argv[1] + "/shards", 2, ingest_every=0.01))
never = timerstore.open_shards(sys.argv[1] + "/never", 2)
atexit.register(timerstore.open_shards(sys.argv[1] + "/hook", 2).close)
holder.store.put_many("t", [b"x"] * 9)

async def opened():
    store = await timerstore.aio.open(sys.argv[1] + f"/{len(stores)}")
    await store.put("t", b"x")
    return store
stores = []
for _ in range(3): stores.append(asyncio.run(opened()))
consumer = stores[0].consumer("t", "g")
class AsyncHolder:
    def __del__(self): asyncio.run(stores[1].close())
async_holder = AsyncHolder()
atexit.register(lambda: asyncio.run(stores[2].close()))
del async_holder
"""
    assert_closed(stores_of(tmp_path, program), 3)
    for name in ("shards", "never", "hook"):
        assert not list((tmp_path / name).rglob("abort")), f"{name} were not closed"


@pytest.mark.more
def test_servers_are_closed_at_exit(tmp_path: Path) -> None:
    program = """
from timerstore import dashboard
from timerstore.telemetry import prometheus
store = make()
pages = [dashboard.start(store), dashboard.start(make().path, snapshot=True)]
scraped = [prometheus.serve(store), prometheus.serve(store)]
holders = [Holder(pages[0]), Holder(scraped[0])]
"""
    assert_closed(stores_of(tmp_path, program), 2)


@pytest.mark.parametrize(
    "ending", sample(["sys.exit(0)", "os._exit(0)", "pass", "os.abort()"], "ends")
)
def test_exit_of_a_forked_child_leaves_stores_of_the_parent_open(
    tmp_path: Path, ending: str
) -> None:
    program = f"""
from timerstore import dashboard
from timerstore.telemetry import prometheus
store = make()
things = [dashboard.start(store), prometheus.serve(store), store.consumer("t", "g")]
things += [timerstore.open_shards(sys.argv[1] + "/shards", 2)]
child = os.fork()
if child == 0:
    {ending}
else:
    os.waitpid(child, 0)
    store.put("u", b"y")
"""
    assert_closed(stores_of(tmp_path, program), 1)
    assert_there(tmp_path / "0", [b"y"], "u")


def test_forked_child_closes_its_own_stores_at_exit(tmp_path: Path) -> None:
    program = """
store = make()
child = os.fork()
if child == 0:
    own = make()
else:
    os.waitpid(child, 0)
"""
    assert_closed(stores_of(tmp_path, program), 2)
