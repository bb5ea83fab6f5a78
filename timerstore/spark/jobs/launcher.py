"""The command `timerstore-spark <job> [options]`.

`timerstore-spark which <job>` prints the file of a job for spark-submit. Listing the jobs needs
neither pyspark nor click, and starts no JVM. An unknown job or a missing package gives one message
and exit status 1.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from timerstore import __version__
from timerstore._engine.base.printing import note, say
from timerstore.spark.jobs.names import JOBS, module_of

INSTALL = "pip install '.[spark]' in a checkout"
_OPTIONAL = {"pyspark", "py4j", "pyarrow", "pandas", "click", "matplotlib"}


def usage() -> str:
    """Return the usage text with all jobs."""
    width = max(map(len, JOBS))
    lines = [f"  {name:{width}}  {text}" for name, text in JOBS.items()]
    return "\n".join(
        [
            "usage: timerstore-spark <job> [options]      (see <job> --help)",
            "       spark-submit $(timerstore-spark which <job>) [options]",
            "       timerstore-spark --version",
            "",
            *lines,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job by name. Return exit status 0 for success, 2 for a failed check, 1 for an error."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] in {"-h", "--help", "help"}:
        say(usage())
        return 0 if given else 1
    name, *rest = given
    if name == "--version":
        say(f"timerstore-spark {__version__}")
        return 0
    if name == "which":
        return _which(rest)
    if name not in JOBS:
        return _unknown(name)
    try:
        module = importlib.import_module(module_of(name))
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _OPTIONAL:
            raise
        return _fail(f"{name} needs {missing}, which is not installed: {INSTALL}")
    status = module.main(rest)
    return int(status)


def _which(names: Sequence[str]) -> int:
    if len(names) != 1:
        return _fail(f"which: wanted one job, got {len(names)}")
    if names[0] not in JOBS:
        return _unknown(names[0])
    # find_spec imports the parent package only.
    spec = importlib.util.find_spec(module_of(names[0]))
    assert spec is not None, names[0]
    assert spec.origin is not None, names[0]
    say(spec.origin)
    return 0


def _unknown(name: str) -> int:
    near = get_close_matches(name, JOBS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return _fail(f"no job is named {name!r}{hint}\n\n{usage()}")


def _fail(text: str) -> int:
    note(f"timerstore-spark: {text}")
    return 1
