"""Operations of retention, backup and restore, made to the store and to the model."""

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

_KNOWN = ("model", "onces", "lost_below", "versions", "lessees", "rounds", "ticks", "halves")


class Saved(NamedTuple):
    """All that callers knew when a backup was made."""

    log_end: int
    made_ms: int
    known: dict[str, Any]  # attributes of the world, by name
    committed: dict[Queue, int]
    born: dict[bytes, tuple[int, int]]
    groups: list[list[bytes]]


class Keeping(Puts):
    """A world with retention, backups and restores."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # since the last backup: afterwards the store may have another id
        self.has_lost_names = False
        self._backups: dict[str, list[Saved]] = {}  # backups that may be the last one
        self._restoring: Any = None
        # messages that can be read, and receipts that can be asked for
        self._begins: dict[Queue, tuple[int, int]] = {}
        self._dropped = 0  # messages not read yet, in this life
        config = self.config
        self._has_limit = bool(config.retention_log_bytes or config.retention_disk_percent)

    # --- retention ---

    def op_crowd(self, percent: int) -> None:
        """Fill the disk with other data, or free space."""
        self.disk.crowded_percent = percent

    def check_removed(self) -> None:
        """Check that removed messages had been read by every group that commits.

        A message that such a group has not read is removed only for lack of space, and then it is
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
        if is_first:  # the store counts since its opening; earlier removals are unknown
            self._dropped = counted
        if self.lessees.topics or self.halves.count:  # a group whose position only the store knows
            return
        assert counted == self._dropped, f"{counted} counted, {self._dropped} removed and not read"

    # --- backups ---

    def op_backup(self, number: int) -> None:
        """Bring a backup up to date."""
        if self.has_doubts:
            return
        target: Any = SimPath(f"/backup-{number}")
        if self.has_lost_names:
            self._drop_backups()
        new = self._save()
        before, self._backups[target] = self._backups.get(target, []), []
        self._backups[target] = [*before, new]  # the backup is the last one if the manifest says so
        try:
            report = self.store.backup(target)
        except (FullError, FailedError):
            if self._is_open and inside(self.store).log.failed is None:
                self.disk.sync_failures = 0  # only syncs of the backup's own files failed
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
        """Forget the backups: they belong to another store, or to a state that the store never
        reached.
        """
        for path in [path for path in self._backups if path != but]:
            del self._backups[path]
            self.disk.remove_tree(SimPath(path))
        self.has_lost_names = False

    def _saved_in(self, target: Any) -> Saved | None:
        """Return the state that a backup holds, or None if the backup was cut short before its
        manifest.
        """
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
        """Lose the store, and restore a backup in its place."""
        self.heal()
        target: Any = SimPath(f"/backup-{number}")
        if target not in self._backups or self._saved_in(target) is None or self.is_dead:
            return
        if kill:
            self.end_now(["kill", 0])
        else:
            self.may_scan_all = True  # the store that was being restored when the process died
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
        """Reset the knowledge of model and callers to the time of the backup."""
        for name, value in deepcopy(saved.known).items():
            setattr(self, name, value)
        self.clock.onces = self.onces
        self.onces.turned(self.clock.latest_ms)
        self.born, self.groups = {**self.born, **saved.born}, list(saved.groups)
        self.readers.committed = dict(saved.committed)
        self.attempts = []
        self.may_scan_all = self.has_failed = True
