"""Cut the power or let the disk fail under real ext4 and XFS, and check every promise.

Acknowledged messages are delivered once and not early, cancelled ones are not delivered, and
visible ones keep their offsets. After each life check.py compares the store with the reports of its
children.

TIMERSTORE_CRASH_KILLS and TIMERSTORE_CRASH_SEED set the amount and the seed of the long run.
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
from tests.support.amounts import both, sample

_SEED = 7_351
_LONG = 2000


def in_own_mounts(*module: str) -> list[str]:
    """Return a command with a mount namespace of its own, so that its mounts end with it."""
    return ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", *module]


class PowerCampaign(Campaign):
    """One worker with a file system of its own."""

    how = "power cuts"
    suite = "power cut"

    def __init__(self, kind: str, directory: Path, seed: int, cuts: int) -> None:
        worker = in_own_mounts("tests.crash.power", kind, str(directory / kind))
        super().__init__(make_power_lives(seed, cuts), seed, [worker])


@pytest.fixture(params=sample(sorted(MAKERS), "file systems whose power is cut"))
def kind(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> str:
    """A kind of file system that is available here."""
    wanted: str = request.param
    reason = why_not(wanted)
    if reason is not None:
        with capsys.disabled():
            print(f"\nNOT RUN: power cuts on {wanted}: {reason}")
        pytest.skip(f"power cuts on {wanted}: {reason}")
    return wanted


def test_power_cut_loses_unsynced_data_only(kind: str, tmp_path: Path) -> None:
    """Test the method itself: a test that cuts no power would always pass."""
    command = in_own_mounts("tests.crash.mount", kind, str(tmp_path / kind))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "synced: new, not synced: gone\n"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("cuts", both("power cuts"))
def test_power_cut_loses_doubles_or_reverts_no_message(
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
def test_failing_disk_ends_the_store_with_a_clear_error(
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
def test_power_cut_loses_doubles_or_reverts_no_message_in_a_long_run(
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
