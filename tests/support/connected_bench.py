"""A bench whose store is reached over a socket: the tests of the API run on it unchanged."""

from typing import Any

import timerstore
import timerstore.net
from tests.support.bench import Bench
from timerstore import TimerStore
from timerstore.testing import Stepper


class ConnectedBench(Bench):
    """As Bench; `store` is a connected one."""

    store: Any  # type: ignore[assignment]

    def open(self) -> TimerStore:
        self.local = timerstore.open(self.root, self.config, clock=self.clock, threads=False)
        self.stepper = Stepper(self.local)
        path = self.root.with_suffix(".sock")
        self.server = timerstore.net.serve(self.local, socket=path)
        self.store = timerstore.connect(f"unix://{path}")
        return self.store

    def close(self) -> None:
        self.store.close()
        self.server.close()
        report = self.local.verify()
        assert report.clean, report
        self.local.close()
