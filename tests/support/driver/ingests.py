"""Ingests of a driver: versions of sources."""

from tests.support.driver.puts import PutDriver
from tests.support.driver.setup import BULK
from tests.support.ingesting import Version, version_of


class IngestDriver(PutDriver):
    """Ingest versions of sources, and record their rows in the model."""

    def ingest(self, source: str, number: int, items: list[tuple[int, int]], cut: int) -> None:
        """Ingest all rows of a version; `items` are its rows when it is new."""
        version = self._version(source, number, items)
        was_complete = number in self.store.ingested(source)
        assert was_complete or not version.is_sure
        receipt = self.store.ingest(source, number, version.batches(cut))
        assert receipt == (source, number, len(version.rows), was_complete)
        assert number in self.store.ingested(source)
        version.is_sure = True
        for body, _ in version.rows:
            self.model.puts[body].sure = True

    def ingest_rest(self) -> None:
        """Complete all versions that were begun."""
        for source, number in self.versions:
            self.ingest(source, number, [], 3)

    def _version(self, source: str, number: int, items: list[tuple[int, int]]) -> Version:
        version = self.versions.get((source, number))
        if version is None:
            rows = [(self.new_body(size), due_ms) for due_ms, size in items]
            version = self.versions[source, number] = Version(rows)
        now_ms, config = self.clock.now_ms, self.config
        for body, due_ms in version.rows:
            waits = due_ms > now_ms
            if body not in self.model.puts:
                receipt = version_of(body, due_ms or now_ms, waits, config)
                self.model.put(BULK, body, receipt.due_ms, receipt, level=-1, sure=False)
            one = self.model.puts[body]
            if not one.sure:  # this call may store it
                one.waited |= waits
                one.due_ms = due_ms or min(now_ms, one.due_ms)
        return version

    def check_ingested(self) -> None:
        """Check that each acknowledged version is complete."""
        for (source, number), version in self.versions.items():
            assert not version.is_sure or number in self.store.ingested(source)
