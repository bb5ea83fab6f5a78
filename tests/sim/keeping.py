"""Operations of keeping: what retention removes, and backups and what is made of them."""

from copy import deepcopy
from typing import Any, NamedTuple

from tests.sim.life import ROOT
from tests.sim.paths import SimPath
from tests.sim.puts import Puts
from tests.support.inside import inside
from tests.support.models.messages import Queue
from timerstore import TimerStore
from timerstore._engine.maintenance.backup import read_manifest
from timerstore._engine.maintenance.restore_backup import restore
from timerstore.errors import FailedError, FullError

_KNOWN = ("model", "onces", "lost_below", "versions", "lessees", "rounds", "ticks")


class Saved(NamedTuple):
    """Everything that a caller knew when a backup was made."""

    log_end: int
    made_ms: int
    known: dict[str, Any]  # of the world, by name
    committed: dict[Queue, int]
    born: dict[bytes, tuple[int, int]]
    groups: list[list[bytes]]


class Keeping(Puts):
    """A world that can be told to forget and to remember."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.has_lost_names = False  # since the last backup: so the store may have another id
        self._backups: dict[str, list[Saved]] = {}  # those that it may be
        self._restoring: Any = None
        self._begins: dict[Queue, tuple[int, int]] = {}  # what can be read, what is told of
        self._dropped = 0  # that was not read, in this life
        config = self.config
        self._has_limit = bool(config.retention_log_bytes or config.retention_disk_percent)

    # --- retention ---

    def op_crowd(self, percent: int) -> None:
        """Others fill the disk, or make space."""
        self.disk.crowded_percent = percent

    def check_removed(self) -> None:
        """What a group that has committed has not read stays, but for want of space: then it is
        counted.
        """
        committed = self.readers.committed
        if self.readers.has_doubts:
            return
        is_first = not self._begins
        for queue in self.model.seen:
            if self.store.topics().get(queue[0], 0) <= queue[1]:
                continue
            begin, dropped = self.begin_of(queue), self.store.pull(*queue, 2**62).min_offset
            was = self._begins.get(queue, (begin, dropped))
            if queue[0] in self.readers.known_topics():
                read = committed.get(queue, 0)
                is_kept = begin <= max(was[0], read)
                assert self._has_limit or is_kept, f"{queue}: not read, and removed"
                self._dropped += max(0, dropped - max(was[1], read))
            self._begins[queue] = begin, dropped
        counted = self._opened_metric("retention_unconsumed_messages")
        if is_first:  # in this life: what it dropped before is not known
            self._dropped = counted
        if self.lessees.topics:  # a group whose place only the store knows
            return
        assert counted == self._dropped, f"{counted} counted, {self._dropped} removed and not read"

    # --- backups ---

    def op_backup(self, number: int) -> None:
        """Bring a backup up to now."""
        if self.has_doubts:
            return
        target: Any = SimPath(f"/backup-{number}")
        if self.has_lost_names:
            self._drop_backups()
        new = self._save()
        before, self._backups[target] = self._backups.get(target, []), []
        self._backups[target] = [*before, new]  # the last one where the manifest says so
        try:
            report = self.store.backup(target)
        except (FullError, FailedError):
            if self._is_open and inside(self.store).log.failed is None:
                self.disk.sync_failures = 0  # of the backup's own files
                self.count("backups that failed")
                self.heal()
                return
            raise
        if not self.is_dead:
            assert report.log_end >= new.log_end
            self._backups[target] = [new._replace(log_end=report.log_end)]

    def _save(self) -> Saved:
        self.store.flush()
        known = deepcopy({name: getattr(self, name) for name in _KNOWN})
        return Saved(
            inside(self.store).log.end, self.clock.now_ms, known,
            dict(self.readers.committed), dict(self.born), list(self.groups),
        )  # fmt: skip

    def _drop_backups(self, but: Any = None) -> None:
        """They are of a store that is no more, or of what it never came to."""
        for path in [path for path in self._backups if path != but]:
            del self._backups[path]
            self.disk.remove_tree(SimPath(path))
        self.has_lost_names = False

    def _saved_in(self, target: Any) -> Saved | None:
        """What a backup is of; None where it was cut off before it was one."""
        manifest = read_manifest(self.disk, target)
        if manifest is None or not manifest.segments:
            return None
        fitting = [
            one for one in self._backups.get(target, ())
            if (one.log_end, one.made_ms) == (manifest.log_end, manifest.made_ms)
        ]  # fmt: skip
        assert fitting, f"a backup of nothing that was: {manifest}"
        return fitting[-1]

    def op_restore(self, number: int, kill: bool) -> None:
        """The store is lost; a backup takes its place."""
        self.heal()
        target: Any = SimPath(f"/backup-{number}")
        if target not in self._backups or self._saved_in(target) is None or self.is_dead:
            return
        if kill:
            self.end_now(["kill", 0])
        else:
            self.may_scan_all = True  # where it dies amid that
            self.store.close()
            self.clock.forget_listeners()
            self._is_open = False
        if not self.is_dead:
            self.disk.remove_tree(ROOT)
            self._restoring = target
            self.rest(0)
            self._open()
            if not self.is_dead:
                self.after_opening()

    def _open(self) -> None:
        if self._restoring is not None:
            self._restore(self._restoring)
        super()._open()

    def take_store(self, store: TimerStore) -> None:
        self._begins, self._dropped = {}, 0
        super().take_store(store)

    def _restore(self, target: Any) -> None:
        if not self.disk.is_directory(ROOT):
            restore(target, ROOT)
        if self.is_dead:
            return
        saved = self._saved_in(target)
        assert saved is not None
        self._restoring = None
        self._drop_backups(but=target)
        self._backups[target] = [saved]
        self._take_over(saved)

    def _take_over(self, saved: Saved) -> None:
        """From here on only what the backup had is known."""
        for name, value in deepcopy(saved.known).items():
            setattr(self, name, value)
        self.clock.onces = self.onces
        self.onces.turned(self.clock.latest_ms)
        self.born, self.groups = {**self.born, **saved.born}, list(saved.groups)
        self.readers.committed = dict(saved.committed)
        self.attempts = []
        self.may_scan_all = self.has_failed = True
