"""A child dies by SIGKILL, at every fail point and at random; what is left keeps every promise.

What was acknowledged comes once and not early, what was cancelled does not, what was seen stays
where it was: after each life check.py compares the store with what its children said.

TIMERSTORE_CRASH_KILLS and TIMERSTORE_CRASH_SEED set amount and seed of the long run.
"""

import os
import re
import secrets
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

import timerstore
from tests.crash.campaign import Campaign
from tests.crash.lives import make_lives
from timerstore import failpoint

pytestmark = [pytest.mark.crash, pytest.mark.slow]

_MEMORY = Path("/dev/shm")
_SEED = 20_131
_KILLS = 290
_KILLS_MIN = 300
_KILLS_LONG = 3000


class KillCampaign(Campaign):
    """As many workers as there are cores, each with a place on the disk and one in memory."""

    def __init__(self, directory: Path, seed: int, kills: int) -> None:
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
        super().__init__(make_lives(seed, kills), seed, workers)
        if not self.failed:
            shutil.rmtree(in_memory)


@pytest.mark.timeout(600)
def test_nothing_is_lost_doubled_early_or_taken_back_after_kill_9(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = KillCampaign(tmp_path, _SEED, _KILLS)
    with capsys.disabled():
        print(campaign.summary)
    campaign.check()
    assert campaign.kills >= _KILLS_MIN
    assert [name for name in failpoint.NAMES if not campaign.points[name]] == []


@pytest.mark.deep
@pytest.mark.timeout(0)
def test_the_same_for_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("TIMERSTORE_CRASH_SEED") or secrets.randbits(31))
    kills = int(os.environ.get("TIMERSTORE_CRASH_KILLS") or _KILLS_LONG)
    with capsys.disabled():
        print(f"\nTIMERSTORE_CRASH_SEED={seed} TIMERSTORE_CRASH_KILLS={kills}")
    campaign = KillCampaign(tmp_path, seed, kills)
    with capsys.disabled():
        print(campaign.summary)
    campaign.check()
    assert campaign.kills >= 0.85 * kills


def test_every_point_in_the_code_has_a_name_and_every_name_its_point() -> None:
    found: Counter[str] = Counter()
    for path in Path(timerstore.__file__).parent.rglob("*.py"):
        if path.name == "failpoint.py":
            continue
        for call in re.findall(r"\breach\((.*)\)", path.read_text()):
            names = re.findall(r'"(\w+)"', call)
            assert names, f"{path}: a point without a plain name: reach({call})"
            found.update(names)
    assert len(failpoint.NAMES) >= 20
    assert len(set(failpoint.NAMES)) == len(failpoint.NAMES)
    assert set(found) == failpoint.ALL_NAMES
    assert [name for name, count in found.items() if count > 1] == [], "one name, two moments"
