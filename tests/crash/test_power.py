"""The power goes, or the disk fails, under real ext4 and XFS; every promise is kept.

What was acknowledged comes once and not early, what was cancelled does not, what was seen stays
where it was: after each life check.py compares the store with what its children said.

TIMERSTORE_CRASH_KILLS and TIMERSTORE_CRASH_SEED set amount and seed of the long run.
"""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.crash.campaign import ROOT, Campaign
from tests.crash.failing_disk import make_failing_lives
from tests.crash.lives import make_power_lives
from tests.crash.mount import MAKERS, why_not
from tests.support.amounts import both

_SEED = 7_351
_LONG = 2000


def in_own_mounts(*module: str) -> list[str]:
    """Give a command whose mounts nobody else sees, and which go with it, however it ends."""
    return ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", *module]


class PowerCampaign(Campaign):
    """One worker, which has a file system of its own."""

    how = "power cuts"
    suite = "power cut"

    def __init__(self, kind: str, directory: Path, seed: int, cuts: int) -> None:
        worker = in_own_mounts("tests.crash.power", kind, str(directory / kind))
        super().__init__(make_power_lives(seed, cuts), seed, [worker])


@pytest.fixture(params=sorted(MAKERS))
def kind(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    """A kind of file system that can be had here."""
    wanted: str = request.param
    reason = why_not(wanted)
    if reason is not None:
        with capsys.disabled():
            print(f"\nNOT RUN: power cuts on {wanted}: {reason}")
        pytest.skip(f"power cuts on {wanted}: {reason}")
    return wanted


def test_a_cut_takes_what_was_not_synced_and_nothing_else(kind: str, tmp_path: Path) -> None:
    """The means itself: a test that cuts no power would pass everything."""
    command = in_own_mounts("tests.crash.mount", kind, str(tmp_path / kind))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "synced: new, not synced: gone\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cuts", both("power cuts"))
def test_nothing_is_lost_doubled_early_or_taken_back_after_a_power_cut(
    cuts: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = PowerCampaign(kind, tmp_path, _SEED, cuts)
    with capsys.disabled():
        print(f"{campaign.summary}on {kind}")
    campaign.check()
    assert campaign.kills >= 0.8 * cuts


class FailingCampaign(Campaign):
    """One worker, with a file system whose disk fails."""

    how = "failing disks"
    suite = "failing disk"

    def __init__(self, kind: str, directory: Path, seed: int, failures: int) -> None:
        worker = in_own_mounts("tests.crash.failing_disk", kind, str(directory / kind))
        super().__init__(make_failing_lives(seed, failures), seed, [worker])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("failures", both("failing disks"))
def test_a_disk_that_fails_ends_the_store_with_a_clear_error(
    failures: int, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    campaign = FailingCampaign(kind, tmp_path, _SEED, failures)
    with capsys.disabled():
        print(f"{campaign.summary}on {kind}")
    campaign.check()
    assert campaign.points["failed"] >= 0.5 * failures


@pytest.mark.deep
@pytest.mark.timeout(0)
@pytest.mark.parametrize("campaign_class", [PowerCampaign, FailingCampaign])
def test_the_same_for_long(
    campaign_class: type[PowerCampaign | FailingCampaign],
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = int(os.environ.get("TIMERSTORE_CRASH_SEED") or secrets.randbits(31))
    amount = int(os.environ.get("TIMERSTORE_CRASH_KILLS") or _LONG)
    with capsys.disabled():
        print(f"\nTIMERSTORE_CRASH_SEED={seed} TIMERSTORE_CRASH_KILLS={amount}")
    campaign = campaign_class(kind, tmp_path, seed, amount)
    with capsys.disabled():
        print(f"{campaign.summary}on {kind}")
    campaign.check()
    assert campaign.kills >= 0.5 * amount
