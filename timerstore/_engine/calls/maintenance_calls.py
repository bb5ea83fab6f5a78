"""Maintain an open store: checkpoint, verify, back up, step services by hand."""

import os
from collections.abc import Callable

from timerstore._engine.base.service import Service
from timerstore._engine.calls.open_store import OpenStore, counted
from timerstore._engine.maintenance import Copier
from timerstore._engine.maintenance.verify import check_store
from timerstore._engine.storage.paths import absolute_path
from timerstore.errors import MessageError
from timerstore.reports import BackupReport, Report


class MaintenanceCalls(OpenStore):
    """The calls of a store that maintain its files."""

    @counted
    def _do_flush(self) -> None:
        self._log.sync_through(self._log.end)
        self._engine.checkpoint.run()

    @counted
    def _do_verify(self) -> Report:
        engine = self._engine
        with engine.retention.still():
            return check_store(engine)

    @counted
    def _do_backup(
        self, target: str | os.PathLike[str], progress: Callable[[int, int], None] | None
    ) -> BackupReport:
        into = absolute_path("backup", target)
        engine = self._engine
        copier = Copier(
            engine.config,
            engine.clock,
            engine.disk,
            engine.directory.tree,
            self._log.segments,
            engine.checkpoint,
        )
        with engine.retention.still():
            return copier.run(into, progress)

    def services(self) -> dict[str, Service]:
        """Return the services by name, in the order in which a message passes through them.

        For `timerstore.testing.Stepper`, which steps them by hand.

        Raises:
            MessageError: the store was not opened with `threads=False`.
        """
        if self._threads:
            raise MessageError("services: this store's run in threads; open it with threads=False")
        engine = self._engine
        *pipeline, flush = engine.pipeline
        services = (
            engine.dispatch,
            *pipeline,
            engine.schedule,
            engine.recurring.planner,
            engine.retention,
            flush,
        )
        return {service.name.replace("-", "_"): service for service in services}
