"""A consumer process: receive and acknowledge, and write a line before and after the ack.

python -m tests.net.consume URL-or-PATH FILE
"""

import sys
import time
from pathlib import Path

import timerstore
from timerstore import AckResult

LEASE_S = 6


def main(where: str, file: str) -> None:
    is_url = where.startswith("unix://")
    store = (
        timerstore.connect(where, retry_for=120) if is_url else timerstore.open(where, shared=True)
    )
    with Path(file).open("a", buffering=1) as out:
        while True:
            for message in store.receive("orders", "g", lease=LEASE_S, max_count=8, wait=2):
                row = f"{message.body.decode()} {time.time() * 1000:.3f} {message.due_ms}"
                out.write(f"received {row}\n")  # this process may be killed after the ack
                result = store.ack(message)
                # SETTLED: the answer to the first ack was lost with the owner.
                is_done = result in (AckResult.ACKED, AckResult.SETTLED)
                if is_done:
                    out.write(f"done {row}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
