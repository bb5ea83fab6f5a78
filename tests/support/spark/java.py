"""Whether there is a Java for Spark, and how to get one.

As a program: says what is there; exit status 1 where it is no JRE 17 or newer. `--install` gets one
by apt, as root or with sudo.
"""

import os
import re
import shutil
import subprocess
import sys

WANTED = 17
PACKAGE = "openjdk-17-jre-headless"


def version() -> int | None:
    """Return the major version of the Java that Spark would start, or None."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        return None
    done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(found[1]) if found else None


def complaint() -> str | None:
    """Return the reason why Java cannot be used, or None."""
    found = version()
    if found is None:
        return "no Java was found (JAVA_HOME, PATH)"
    return None if found >= WANTED else f"Java {found} is too old"


def install() -> int:
    """Install Java with apt, and return its exit status."""
    apt = shutil.which("apt-get")
    sudo = [] if os.geteuid() == 0 else [shutil.which("sudo")]
    if apt is None or None in sudo:
        print(f"cannot install {PACKAGE}: no apt-get, or neither root nor sudo", file=sys.stderr)
        return 1
    print(f"installing {PACKAGE}", file=sys.stderr)
    for command in (["update", "-qq"], ["install", "-y", "--no-install-recommends", PACKAGE]):
        done = subprocess.run([*filter(None, sudo), apt, *command], check=False)
        if done.returncode:
            return done.returncode
    return 0 if complaint() is None else 1


def main() -> int:
    """Report the installed version, or install Java."""
    if "--install" in sys.argv[1:]:
        return install()
    wrong = complaint()
    if wrong is not None:
        print(f"!!! {wrong}: Spark needs a JRE of {WANTED} or newer", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
