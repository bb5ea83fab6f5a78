"""Ends of a driven store: closing, kills, lost files, and the opening after each."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from tests.support.driver.pending import PendingDriver
from tests.support.driver.setup import (
    abandon,
)
from tests.support.inside import failpoints, inside


class EndDriver(PendingDriver):
    """Close or kill the store, open it again, and compare it with the model."""

    def reopen(self, far_wheel: Literal["off", "shared", "own"] | None = None) -> None:
        """Close and open the store, perhaps with another mode of the far wheel."""
        self.store.close()
        if far_wheel is not None:
            self.config = replace(self.config, far_wheel=far_wheel)
        self._open()
        self.after_opening()

    def kill(self) -> None:
        """Kill the store, and open its files."""
        with self.dying(None, 1):
            pass

    def kill_at(self, point: str, nth: int, during: Callable[[], None]) -> None:
        """Kill the store at a fail point inside a call, or after it if the point is not passed."""
        with self.dying(point, nth):
            during()

    @contextmanager
    def dying(self, point: str | None, nth: int, *, is_opened: bool = True) -> Iterator[list[str]]:
        """Run a call in a store that is killed at a fail point of the call, or after it."""
        old, old_path = self.store, self.store_path()
        self._generation += 1
        reached: list[str] = []
        passed = 0

        def hook(name: str) -> None:
            nonlocal passed
            passed += name == point
            if name == point and passed == nth:
                self._leave(old_path, self.store_path())
                reached.append(name)

        failpoints.hook = hook
        try:
            yield reached
        finally:
            failpoints.hook = None
        if not reached:
            self._leave(old_path, self.store_path())
        abandon(old)
        shutil.rmtree(old_path)
        if is_opened:
            self._open()
            self.after_opening()

    def open_again(self) -> None:
        """Open the files of a store that `dying` ended."""
        self._open()
        self.after_opening()

    def kill_in_recovery(self, point: str, nth: int) -> None:
        """Kill the store, and kill it again at a fail point of the next opening."""
        with self.dying(None, 1, is_opened=False):
            pass
        path, next_path = self.store_path(), self.root / f"store-{self._generation + 1}"
        passed = 0
        is_copied = False

        def hook(name: str) -> None:
            nonlocal passed, is_copied
            passed += name == point
            if name == point and passed == nth:
                self._leave(path, next_path)
                is_copied = True

        failpoints.hook = hook
        try:
            self._open()
        finally:
            failpoints.hook = None
        if is_copied:
            abandon(self.store)
            shutil.rmtree(path)
            self._generation += 1
            self._open()
        self.after_opening()

    def lose(self, names: list[str], *, kill: bool) -> None:
        """Close or kill the store, and open it without some files that are derived from the log."""
        self._has_lost = inside(self.store).log.segments.begin > 0
        if kill:
            with self.dying(None, 1, is_opened=False):
                pass
        else:
            self.store.close()
        if not {"timerstore", "timerstore/watermark", "timerstore/counts"}.isdisjoint(names):
            # The end of a queue without messages is known only from those or from its own files.
            names = [name for name in names if name != "consumequeue" or not self._has_lost]
        for name in names:
            path = self.store_path() / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.may_scan_all = True
        self._open()
        self.after_opening()

    def after_opening(self) -> None:
        for one in self.model.puts.values():
            if one.maybe_moved is not None:
                ids = one.receipt.message_id
                handles = [p.handle for p in self.store.pending() if p.message_id == ids]
                new = self._pull_new(one.queue, len(self.model.seen[one.queue]))
                self.model.decide_moved(one, handles, {m.body for m in new})
        self.check_ingested()
        self.readers.lost()
        self.readers.check(self.store)
        self.look_again()
        self.look()
