"""Whether there is a Chromium with its driver, for the tests of the page; how to get one.

As a program: prints what it found; exit status 1 if a part is missing. `--install` gets it by apt,
as root or with a sudo that asks for no password.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGES = ("chromium", "chromium-driver")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--window-size=1280,1000",
)


def browser() -> str | None:
    """Return the path of the browser, or None."""
    return next(filter(None, map(shutil.which, _BROWSERS)), None)


def complaint() -> str | None:
    """Return which program is missing, or None."""
    if browser() is None:
        return "no Chromium was found (PATH)"
    return None if shutil.which("chromedriver") else "no chromedriver was found (PATH)"


def install() -> int:
    """Install both with apt, and return its exit status."""
    apt = shutil.which("apt-get")
    sudo = [] if os.geteuid() == 0 else [shutil.which("sudo"), "-n"]
    if apt is None or None in sudo:
        print(
            f"cannot install {PACKAGES[0]}: no apt-get, or neither root nor sudo", file=sys.stderr
        )
        return 1
    print(f"installing {' and '.join(PACKAGES)}", file=sys.stderr)
    for command in (
        ["update", "-qq"],
        ["install", "-qq", "-y", "--no-install-recommends", *PACKAGES],
    ):
        done = subprocess.run(
            [*filter(None, sudo), apt, *command], stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            return done.returncode
    return 0 if complaint() is None else 1


@contextmanager
def driven(profile: Path, *more: str) -> Iterator[Any]:
    """Run a headless browser with its own profile that fetches nothing by itself."""
    # Imported here, because the check for a browser must work without selenium.
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = browser() or ""
    for one in (*_ARGUMENTS, f"--user-data-dir={profile}", *more):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def main() -> int:
    """Report which programs are installed, or install them."""
    wrong = complaint()
    if wrong is not None and "--install" in sys.argv[1:]:
        return install()
    if wrong is not None:
        print(f"!!! {wrong}: the tests of the page in a browser need it", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
