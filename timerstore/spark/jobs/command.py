"""timerstore-spark <job> [options]; `timerstore-spark which <job>` names the file for spark-submit.

Holds:    needs click only until a job is chosen: listing and asking for help starts no JVM.
Fails:    exit status 1 and one message: an unknown job, no pyspark, no click.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from timerstore.spark.jobs.names import JOBS, module_of

INSTALL = "pip install 'timerstore[spark]'"
_OPTIONAL = {"pyspark", "py4j", "pyarrow", "pandas", "click", "matplotlib"}


def usage() -> str:
    """List the jobs."""
    width = max(map(len, JOBS))
    lines = [f"  {name:{width}}  {text}" for name, text in JOBS.items()]
    return "\n".join(
        [
            "usage: timerstore-spark <job> [options]      (<job> --help tells them)",
            "       spark-submit $(timerstore-spark which <job>) [options]",
            "",
            *lines,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job by its name; the exit status: 0 fine, 2 a check failed, 1 an error."""
    given = list(sys.argv[1:] if argv is None else argv)
    if not given or given[0] in {"-h", "--help", "help"}:
        _say(usage(), sys.stdout)
        return 0 if given else 1
    name, *rest = given
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
        return _fail("which: wanted one job")
    if names[0] not in JOBS:
        return _unknown(names[0])
    # The parent package is imported to find it, so a missing pyspark shows here as well.
    spec = importlib.util.find_spec(module_of(names[0]))
    assert spec is not None, names[0]
    assert spec.origin is not None, names[0]
    _say(spec.origin, sys.stdout)
    return 0


def _unknown(name: str) -> int:
    near = get_close_matches(name, JOBS, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return _fail(f"no job is named {name!r}{hint}\n\n{usage()}")


def _fail(text: str) -> int:
    _say(f"timerstore-spark: {text}", sys.stderr)
    return 1


def _say(text: str, where: object) -> None:
    assert hasattr(where, "write")
    where.write(f"{text}\n")
