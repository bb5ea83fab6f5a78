"""Fill a topic and delete it, again and again, in a child that is killed.

The child appends a row to a file before and after each deletion.
"""

import os
import time
from itertools import count
from pathlib import Path

import timerstore
from tests.support.bench import small
from tests.support.points import die_at

CONFIG = small(commit_log_segment_bytes=1 << 20, checkpoint_interval_ms=20, flush="sync")
TOPIC = "gone"
GROUP = "workers"
PUTS = 12


def run(root: str, point: str | None) -> None:
    """Fill and delete until it is killed: at a fail point of the second turn, or from outside."""
    with timerstore.open(root, CONFIG) as store:
        notes = os.open(Path(root).parent / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        for turn in count():
            if turn == 1 and point is not None:
                die_at(point)
            os.write(notes, b"filling\n")
            for number in range(PUTS):
                store.put(TOPIC, b"%d" % number, delay=(0, 0.01, 600)[number % 3], keys="k")
            soon_ms = time.time_ns() // 1_000_000 + 20
            store.put(TOPIC, b"brief", expires_ms=soon_ms)
            store.put("kept", b"kept", delay=600)
            store.receive(TOPIC, GROUP, max_count=3, lease=600)
            os.write(notes, b"filled\n")
            os.write(notes, b"deleting\n")
            store.delete_topic(TOPIC)
            os.write(notes, b"deleted\n")
