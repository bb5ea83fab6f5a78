"""Kill a child by SIGKILL, at every fail point and at random times, and check every promise.

Acknowledged messages are delivered once and not early, cancelled ones are not delivered, and
visible ones keep their offsets. After each life check.py compares the store with the reports of its
children.

TIMERSTORE_CRASH_KILLS and TIMERSTORE_CRASH_SEED set the amount and the seed of the long run.
"""

import os
import re
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import timerstore
from tests.crash.campaign import Campaign
from tests.crash.lives import make_few_lives, make_lives
from tests.support.amounts import AMOUNTS, both
from tests.support.inside import failpoints

_MEMORY = Path("/dev/shm")
_SEED = 20_131
_KILLS_MIN = 300
_KILLS_LONG = 3000


class KillCampaign(Campaign):
    """One worker for each core, each with a directory on the disk and one in memory."""

    def __init__(self, directory: Path, seed: int, lives: Iterator[dict[str, Any]]) -> None:
        in_memory = tempfile.mkdtemp(
            prefix="timerstore-crash-", dir=_MEMORY if _MEMORY.is_dir() else directory
        )
        workers = [
            [
                sys.executable,
                "-m",
                "tests.crash.worker",
                str(directory / f"worker-{number}"),
                in_memory,
            ]
            for number in range(len(os.sched_getaffinity(0)))
        ]
        super().__init__(lives, seed, workers)
        if not self.failed:
            shutil.rmtree(in_memory)


_LIVES = "kill -9 lives"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("count", both(_LIVES))
def test_kill_loses_doubles_or_reverts_no_message(
    count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    is_all = count == AMOUNTS[_LIVES].all
    lives = make_lives(_SEED, count) if is_all else make_few_lives(_SEED, count)
    campaign = KillCampaign(tmp_path, _SEED, lives)
    with capsys.disabled():
        print(campaign.summary)
    campaign.check()
    assert campaign.kills >= (_KILLS_MIN if is_all else 0.8 * count)
    if is_all:
        assert [name for name in failpoints.NAMES if not campaign.points[name]] == []


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_kill_loses_doubles_or_reverts_no_message_in_a_long_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("TIMERSTORE_CRASH_SEED") or secrets.randbits(31))
    kills = int(os.environ.get("TIMERSTORE_CRASH_KILLS") or _KILLS_LONG)
    with capsys.disabled():
        print(f"\nTIMERSTORE_CRASH_SEED={seed} TIMERSTORE_CRASH_KILLS={kills}")
    campaign = KillCampaign(tmp_path, seed, make_lives(seed, kills))
    with capsys.disabled():
        print(campaign.summary)
    campaign.check()
    assert campaign.kills >= 0.85 * kills


def test_failpoint_names_match_the_points_in_the_code() -> None:
    found: Counter[str] = Counter()
    for path in Path(timerstore.__file__).parent.rglob("*.py"):
        if path.name == "failpoints.py":
            continue
        for call in re.findall(r"\breach\((.*)\)", path.read_text()):
            names = re.findall(r'"(\w+)"', call)
            assert names, f"{path}: a point without a plain name: reach({call})"
            found.update(names)
    assert len(failpoints.NAMES) >= 20
    assert len(set(failpoints.NAMES)) == len(failpoints.NAMES)
    assert set(found) == failpoints.ALL_NAMES
    assert [name for name, count in found.items() if count > 1] == [], "one name, two moments"
