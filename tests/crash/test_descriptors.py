"""A lack of descriptors is an error that passes: no store fails, and the next call works.

Each call of the operating system that takes a descriptor fails with EMFILE, once or for some time.
The same store must then go on, without being opened again.
"""

import errno
import shutil
from pathlib import Path

import pytest

from tests.crash.failing_calls import FailingCalls
from tests.crash.scenes import SCENES, config_of
from tests.crash.story import Story
from tests.support.amounts import both


def _play(name: str, folder: Path, nth: int, *, once: bool) -> int:
    """Run a scene whose n-th call fails (0: none), and go on. Return the number of calls."""
    scene = SCENES[name]
    story = Story(folder, config_of(scene))
    folder.mkdir(parents=True)
    calls = FailingCalls(folder)
    try:
        with calls.installed():
            scene.before(story)
            assert not story.errors
            before = calls.count
            if nth:
                calls.fail(nth, errno.EMFILE, once=once)
            scene.during(story)
            counted = calls.count - before
            calls.heal()
            wrong = [one for one in story.errors if not getattr(one, "retryable", False)]
            assert not wrong, wrong
            story.errors.clear()
            _go_on(story)
            assert not story.errors, story.errors
            story.close()
        assert not story.errors, story.errors
        scene.checked(story)
    except Exception as error:
        how = f"{name}: call {nth} and {'no other' if once else 'all after'}"
        raise AssertionError(f"{how}: {calls.failed[:3]} -> {error!r}") from error
    finally:
        story.drop()
        shutil.rmtree(folder, ignore_errors=True)
    return counted


def _go_on(story: Story) -> None:
    """Use the store as before; open it if the scene has closed it, or could not open it."""
    if story.store is None:
        assert story.open()
    story.put(topic="mails", queue_id=0)
    story.put(300)
    story.settle()
    story.opened.flush()
    story.pull()


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("count", both("failing calls of a scene"))
def test_store_goes_on_after_a_lack_of_descriptors(count: int, name: str, tmp_path: Path) -> None:
    calls = _play(name, tmp_path / "s", 0, once=True)
    cases = [(nth, once) for nth in range(1, calls + 1) for once in (True, False)]
    for at in range(min(count, len(cases))):
        nth, once = cases[at * 7919 % len(cases)]
        _play(name, tmp_path / "s", nth, once=once)


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_store_goes_on_after_each_lack_of_a_descriptor(name: str, tmp_path: Path) -> None:
    for nth in range(1, _play(name, tmp_path / "s", 0, once=True) + 1):
        for once in (True, False):
            _play(name, tmp_path / "s", nth, once=once)
