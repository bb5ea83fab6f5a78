"""Test that no message is lost when each call to the operating system fails, once or for ever."""

import errno
import gc
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.failing_calls import FailingCalls
from tests.crash.scenes import SCENES, config_of
from tests.crash.story import Story
from tests.support import ledger
from tests.support.amounts import both

_CODES = (errno.EIO, errno.ENOSPC)


def tell(
    name: str, folder: Path, nth: int, code: int, *, once: bool, closes: bool, seen: Counter[str]
) -> tuple[int, int]:
    """Run a scene whose n-th call fails (0: none). Return the numbers of calls and of failures."""
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
                calls.fail(nth, code, once=once)
            scene.during(story)
            if closes:
                story.close()
            counted = calls.count - before
            calls.heal()
            story.drop()
        scene.checked(story)
        assert bool(story.errors) <= bool(calls.failed), story.errors
    except Exception as error:
        how = f"{name}: call {nth} and {'no other' if once else 'all after'}, {closes=}"
        said = [f"{one!r}" for one in story.errors[:3]]
        raise AssertionError(f"{how}: {calls.failed[:3]} -> {error!r}; said {said}") from error
    finally:
        story.drop()
        shutil.rmtree(folder, ignore_errors=True)
    seen.update(calls.counts)
    return counted, len(calls.failed)


def _cases(count: int) -> list[tuple[int, int, bool, bool]]:
    """Return every call, with an error and a way to end the store, as (n, error, once, whether
    closed).

    The order makes the first cases a fair sample.
    """
    cases = [
        (nth, code, once, closes)
        for nth in range(1, count + 1)
        for code in _CODES
        for once in (True, False)
        for closes in (True, False)
    ]
    return [cases[at * 7919 % len(cases)] for at in range(len(cases))]


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("count", both("failing calls of a scene"))
def test_failing_call_loses_no_message(count: int, name: str, tmp_path: Path) -> None:
    _play(name, tmp_path / "s", count)


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", SCENES)
def test_every_failing_call_loses_no_message(name: str, tmp_path: Path) -> None:
    began = time.process_time()
    done = _play(name, tmp_path / "s")
    ledger.add("n-th call fails", done, time.process_time() - began, {name: done})


def _play(name: str, folder: Path, wanted: int | None = None) -> int:
    seen: Counter[str] = Counter()
    count, _ = tell(name, folder, 0, 0, once=True, closes=True, seen=seen)
    assert count > 10
    done, cases = 0, _cases(count)
    for nth, code, once, closes in cases:
        if done == wanted:
            break
        _, failed = tell(name, folder, nth, code, once=once, closes=closes, seen=seen)
        done += failed > 0
    gc.collect()
    print(f"{name}: {count} calls, {done} of {len(cases)} failures")
    assert wanted is None or done == wanted
    return done
