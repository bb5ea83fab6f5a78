"""Define the scenes in which a system call fails: the calls before it, and the calls during it.

See also: story.py, which makes the calls and checks the store afterwards.
"""

import shutil
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import timerstore
from tests.crash.story import CONFIG, Story
from tests.support.driver import START_MS
from tests.support.inside import inside
from timerstore import StoreConfig


class Scene(NamedTuple):
    """Calls before the failure, and calls during which it occurs."""

    before: Callable[[Story], None]
    during: Callable[[Story], None]
    config: Mapping[str, Any] = MappingProxyType({})
    checked: Callable[[Story], None] = Story.check


def config_of(scene: Scene) -> StoreConfig:
    """Return the configuration for the store of a scene."""
    return StoreConfig(
        **({name: getattr(CONFIG, name) for name in CONFIG.__slots__} | dict(scene.config))
    )


def _opened(story: Story) -> None:
    assert story.open()


def _nothing(_story: Story) -> None:
    pass


def _open_and_put(story: Story) -> None:
    if story.open():
        story.put()


def _puts(story: Story) -> None:
    story.put()
    story.put(300)
    story.put(level=1, topic="mails", queue_id=0)
    story.put(message_id="once")
    story.put_many(4, 200)
    story.put_many(3, 0, atomic=True)
    story.put(flush="async")
    story.settle()
    story.pull()


def _full_of_timers(story: Story) -> None:
    _opened(story)
    for n in range(6):
        story.put(300 + 100 * n)
    story.put_many(5, 250)
    story.put(level=1, topic="mails", queue_id=0)
    story.put(2500)  # the message rolls
    story.settle()


def _deliver(story: Story) -> None:
    for ms in (310, 400, 1500):
        story.advance(ms)
        story.pull()


def _cancel(story: Story) -> None:
    story.cancel(0)
    story.reschedule(1, 50)
    story.reschedule(2, 5000)
    story.settle()
    story.cancel(3)
    story.advance(200)
    story.pull()


def _with_messages(story: Story) -> None:
    _opened(story)
    story.put_many(6, 0)
    story.settle()


def _commits(story: Story) -> None:
    story.commit(2)
    story.commit(3)


def _rolls(story: Story) -> None:
    for n in range(12):
        story.put(400 * (n % 3), size=900)
    story.put_many(40, 100)
    story.settle()
    story.advance(1000)
    story.pull()


def _checkpoints(story: Story) -> None:
    for _ in range(3):
        story.put(200, flush="async")
        story.ask(story.opened.flush)
    story.settle()


def _close(story: Story) -> None:
    story.put()
    story.close()


def _killed(story: Story) -> None:
    _full_of_timers(story)
    story.opened.flush()
    story.put(800)
    story.put_many(5, 0)
    story.put(flush="async")
    story.drop()


def _closed(story: Story) -> None:
    _full_of_timers(story)
    story.close()


def _without_side_files(story: Story) -> None:
    _killed(story)
    shutil.rmtree(story.root / "timerwheel", ignore_errors=True)
    (story.root / "timerstore/watermark").unlink()


def _recover(story: Story) -> None:
    if story.open():
        story.settle()
        story.pull()


def _old_and_waiting(story: Story) -> None:
    story.droppable = True
    _opened(story)
    story.put(60_000)
    story.put(level=2, topic="mails", queue_id=0)
    for n in range(12):
        story.put(100 * n, size=700)
    story.advance(1500)
    story.pull_all()


def _retain(story: Story) -> None:
    for _ in range(5):
        story.advance(2500)
        story.put(size=700)
    story.pull()


def _backed_up(story: Story) -> None:
    _full_of_timers(story)
    story.opened.backup(story.folder / "backup")
    for n in range(6):
        story.put(700 * (n % 2), size=700)


def _backup(story: Story) -> None:
    story.ask(lambda: story.opened.backup(story.folder / "backup"))
    story.ask(lambda: story.opened.backup(story.folder / "other"))
    story.put()


def _restorable(story: Story) -> None:
    """Check that the earlier backup or the new one is complete."""
    story.check()
    for name in ("backup", "other"):
        if (story.folder / name / "backup.json").exists():
            assert timerstore.check_backup(story.folder / name).clean
            timerstore.restore(story.folder / name, story.folder / f"restored-{name}")
            with timerstore.open(story.folder / f"restored-{name}", threads=False) as store:
                assert store.verify().clean
    assert (story.folder / "backup/backup.json").exists()


def _restore(story: Story) -> None:
    story.ask(lambda: timerstore.restore(story.folder / "backup", story.folder / "restored"))


def _restored(story: Story) -> None:
    story.check()
    target = story.folder / "restored"
    if not target.exists():
        timerstore.restore(story.folder / "backup", target)
    with timerstore.open(target, clock=story.clock, threads=False) as store:
        assert store.verify().clean
        assert store.stats()["pending_messages"] == 13


def _ingests(story: Story) -> None:
    story.ingest(1, 7)
    story.ingest(2, 4)
    story.settle()
    story.ingest(1, 7)
    story.pull()


def _looks(story: Story) -> None:
    store = story.opened
    story.ask(lambda: list(store.pending()))
    for n in range(3):
        story.ask(lambda n=n: store.query("orders", f"key-{n}"))  # type: ignore[misc]
    report = story.ask(store.verify)  # it reports the files that it could not read
    if report is not None and not inside(store).log.failed:
        assert all("(E" in one.got for one in report.problems), report
    story.ask(store.stats)
    story.ask(lambda: store.offset_at("orders", 0, START_MS))
    story.pull()


SCENES = {
    "open": Scene(_nothing, _open_and_put),
    "put": Scene(_opened, _puts),
    "deliver": Scene(_full_of_timers, _deliver),
    "cancel": Scene(_full_of_timers, _cancel),
    "commit": Scene(_with_messages, _commits),
    "roll": Scene(_opened, _rolls),
    "checkpoint": Scene(_full_of_timers, _checkpoints),
    "close": Scene(_full_of_timers, _close),
    "recover": Scene(_killed, _recover),
    "reopen": Scene(_closed, _recover),
    "recover anew": Scene(_without_side_files, _recover),
    "retain": Scene(_old_and_waiting, _retain, {"retention_ms": 2000}),
    "backup": Scene(_backed_up, _backup, checked=_restorable),
    "restore": Scene(_backed_up, _restore, checked=_restored),
    "ingest": Scene(_opened, _ingests, {"commit_log_segment_bytes": 16_384}),
    "look": Scene(_full_of_timers, _looks),
}
