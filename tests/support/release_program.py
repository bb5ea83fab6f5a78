"""What a release writes, reads and sends for its fixture, with its public names only.

    python release_program.py FOLDER

runs with the wheel of a release, in an environment without this repository, and makes in FOLDER the
stores, expected.json and frames.json. Tests call `describe` and `talk` with later releases.
"""

import base64
import json
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import timerstore
import timerstore.net
from timerstore.testing import ManualClock, Stepper

NOW_MS = 1_800_000_000_000
LATER_MS = NOW_MS + 10_000
"""The time at which the files were left."""
CONFIG = timerstore.StoreConfig(
    commit_log_segment_bytes=1 << 18,
    queue_segment_bytes=2000,
    timer_log_segment_bytes=64 * 1024,
    wheel_slot_count=128,
    index_slot_count=50,
    index_entry_count=200,
    staging_bytes=16 * 1024,
    message_bytes_max=4096,
    reserve_bytes=0,
)


def fill(store: Any) -> None:
    """Use what leaves something in the files of a store."""
    for k in range(6):
        store.put("orders", b"now %d" % k, message_id=f"now-{k}", tags="red", keys=[f"key-{k % 2}"])
    store.put_many("orders", [b"batch %d" % k for k in range(5)], delay=[k * 4.0 for k in range(5)])
    store.put("orders", b"level", level=3, properties={"colour": "blue"})
    store.put("orders", b"far", delay=400 * 86_400)
    cancelled = store.put("orders", b"cancelled", delay=60)
    assert store.cancel(cancelled) is timerstore.CancelResult.CANCELLED
    store.reschedule(store.put("orders", b"moved", delay=60), delay=3600)
    store.put("orders", b"only", delay=120, key="unique", unique=True)
    store.put("orders", b"first", delay=90, key="newest", replace=True)
    store.put("orders", b"second", delay=90, key="newest", replace=True)
    store.put_every("reports", b"hourly", every=3600, name="hourly")


def consume(store: Any) -> None:
    """Leave leases, a dead letter and committed offsets."""
    done, failed, _ = store.receive("orders", "workers", max_count=3)
    store.ack(done)
    store.nack(failed, delay=600, error="refused")
    store.bury(store.receive("orders", "workers")[0], error="broken")
    with store.consumer("orders", "readers") as consumer:
        consumer.poll(max_count=4)
        consumer.commit()


def parts_of(store: Any) -> Any:
    """Return the shards of a store, or the store."""
    return getattr(store, "stores", [store])


def settle(store: Any) -> None:
    for one in parts_of(store):
        Stepper(one).settle()


def make(folder: Path) -> None:
    """Make the files and expected.json."""
    clock = ManualClock(NOW_MS)
    stores: dict[str, Any] = {
        "store": timerstore.open(folder / "store", CONFIG, clock=clock, threads=False),
        "shards": timerstore.open_shards(folder / "shards", 2, CONFIG, clock=clock, threads=False),
    }
    for store in stores.values():
        fill(store)
        settle(store)
    clock.set(LATER_MS)
    for store in stores.values():
        settle(store)
    consume(stores["store"])
    stores["store"].flush()
    stores["store"].backup(folder / "backup")
    shutil.copytree(folder / "store", folder / "killed")
    expected = {name: describe(store) for name, store in stores.items()}
    for store in stores.values():
        store.close()
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def describe(store: Any) -> Any:
    """Return what a store has, as JSON has it."""
    topics = store.topics()
    found = {
        "topics": {name: topics[name] for name in ("orders", "reports")},
        "pending": sorted([one.topic, one.message_id, one.due_ms] for one in store.pending()),
        "messages": {
            topic: sorted(
                [one.message_id, bytes(one.body).decode(), one.tags, *one.keys]
                for part in parts_of(store)
                for queue_id in range(part.topics().get(topic, 0))
                for one in part.pull(topic, queue_id, 0).messages
            )
            for topic in ("orders", "reports")
        },
        "backlog": vars_of(store.backlog("orders", "workers")),
        "committed": {
            str(key): value for key, value in store.committed("orders", "readers").items()
        },
        "recurring": [[one.name, one.topic] for one in store.recurring()],
        "found": sorted(one.message_id for one in store.query("orders", "key-1")),
        "dead": [[bytes(one.body).decode(), one.error] for one in store.dead_letters("workers")],
    }
    return json.loads(json.dumps(found))


def vars_of(value: Any) -> dict[str, Any]:
    return {
        name: getattr(value, name) for name in ("ready", "leased", "in_backoff", "dead_letters")
    }


def talk(store: Any) -> Any:
    """Make calls through a server, and return their results, as JSON has them."""
    first = store.put("orders", b"one", deliver_ms=LATER_MS + 60_000, message_id="one")
    batch = store.put_many("orders", [b"a", b"b"], delay=[60.0, 61.0], message_ids=["a", "b"])
    pulled = store.pull("orders", 0, 0, max_count=3)
    with store.consumer("orders", "clients") as consumer:
        polled = [one.message_id for one in consumer.poll(max_count=2)]
        consumer.commit()
    try:
        refused = store.cancel("no handle").name
    except timerstore.MessageError as error:
        refused = type(error).__name__
    results = {
        "put": [first.topic, first.message_id, first.due_ms, first.duplicate],
        "again": store.put(
            "orders", b"one", deliver_ms=LATER_MS + 60_000, message_id="one"
        ).duplicate,
        "put_many": [one.message_id for one in batch],
        "pull": [bytes(one.body).decode() for one in pulled.messages],
        "polled": polled,
        "committed": {
            str(key): value for key, value in store.committed("orders", "clients").items()
        },
        "refused": refused,
        "cancel": [store.cancel(first).name, store.cancel(first).name],
        "leased": [
            bytes(one.body).decode() for one in store.receive("orders", "others", max_count=2)
        ],
        "pending": sorted(one.message_id for one in store.pending(topic="orders")),
        "histogram": int(store.histogram(topic="orders").counts.sum()),
        "backlog": vars_of(store.backlog("orders", "others")),
    }
    store.flush()
    return json.loads(json.dumps(results))


class Recorder:
    """Passes one connection on to a server, and keeps its frames in order."""

    def __init__(self, target: Path, path: Path) -> None:
        self.frames: list[list[str]] = []
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        self._target = target
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        client, _ = self._listening.accept()
        server = socket.socket(socket.AF_UNIX)
        server.connect(str(self._target))
        threading.Thread(target=self._pass, args=("server", server, client), daemon=True).start()
        self._pass("client", client, server)

    def _pass(self, side: str, source: socket.socket, target: socket.socket) -> None:
        stream = source.makefile("rb")
        while size := stream.read(4):
            payload = stream.read(int.from_bytes(size))
            self.frames.append([side, base64.b64encode(payload).decode()])
            target.sendall(size + payload)
        target.shutdown(socket.SHUT_RDWR)


def record(folder: Path) -> None:
    """Serve a copy of the store, and add the results of `talk`; keep the frames."""
    shutil.copytree(folder / "store", folder / "served")
    clock = ManualClock(LATER_MS)
    with (
        timerstore.open(folder / "served", CONFIG, clock=clock, threads=False) as store,
        timerstore.net.serve(store, socket=folder / "server.sock"),
    ):
        recorder = Recorder(folder / "server.sock", folder / "relay.sock")
        with timerstore.connect(f"unix://{folder}/relay.sock") as client:
            results = talk(client)
    expected = json.loads((folder / "expected.json").read_text())
    (folder / "expected.json").write_text(json.dumps(expected | {"talk": results}, indent=1) + "\n")
    (folder / "frames.json").write_text(json.dumps(recorder.frames, indent=0) + "\n")
    shutil.rmtree(folder / "served")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
    record(Path(sys.argv[1]))
    print(timerstore.__version__)
