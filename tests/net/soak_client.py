"""Some clients in one process, each on a thread: put, receive, acknowledge, wait. Ends when killed.

python -m tests.net.soak_client URL COUNT
"""

import sys
import threading

import timerstore


def _work(url: str, number: int) -> None:
    store = timerstore.connect(url, return_leases=True, retry_for=120)
    topic = f"t{number % 4}"
    consumer = store.consumer(topic, f"reader-{number}")
    while True:
        store.put(topic, b"x" * 500, delay=0.05)
        store.receive(topic, "leased", lease=3600, wait=0.2)  # every second one is not settled
        for message in store.receive(topic, "leased", lease=3600, wait=0.2):
            store.ack(message)
        consumer.poll(8)
        next(store.pending(), None)


def main(url: str, count: str) -> None:
    threads = [threading.Thread(target=_work, args=(url, k)) for k in range(int(count))]
    for one in threads:
        one.start()


if __name__ == "__main__":
    main(*sys.argv[1:])
