"""Create N shards and their cluster.json, without Spark.

--set gives a field of StoreConfig, as --set precision_ms=100. Settings that determine file sizes
are stored in the files of a shard, limits in cluster.json. Each shard is opened once, which creates
its files.

Invariants:
    A repeated run on the same directory with the same number of shards changes nothing.
"""

import dataclasses
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import timerstore
from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import FOLDER, Job, Outcome, Run, parse_settings
from timerstore.types.config import StoreConfig


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: Path
    shards: int
    settings: tuple[str, ...] = ()


def build(args: Args) -> StoreConfig:
    """Return the configuration of every shard."""
    return config_of(args.settings)


def work(run: Run, args: Args) -> Outcome:
    """Create the shards."""
    config = build(args)
    with timerstore.open_shards(args.path, args.shards, config, threads=False):
        pass
    run.tell(f"{args.shards} shards in {args.path}")
    return Outcome({"path": str(args.path), "shards": args.shards})


def config_of(settings: Sequence[str]) -> StoreConfig:
    """Parse `name=value` texts. Raise ConfigError, which lists all problems."""
    kinds = {one.name: type(one.default) for one in dataclasses.fields(StoreConfig)}
    given: dict[str, object] = {}
    problems = []
    for name, text in parse_settings(settings).items():
        kind = kinds.get(name)
        if kind is None:
            problems.append(f"--set: {name}: unknown setting; known: {', '.join(kinds)}")
        elif kind is bool and text.lower() in {"true", "false"}:
            given[name] = text.lower() == "true"
        elif kind is int and re.fullmatch(r"-?[0-9]{1,30}", text):
            given[name] = int(text)
        elif kind is str:
            given[name] = text
        else:
            problems.append(f"--set: {name}: wanted {kind.__name__}, got {text!r}")
    if problems:
        raise ConfigError(problems)
    return StoreConfig(**given)  # type: ignore[arg-type]


JOB = Job(
    "init-shards",
    Args,
    work,
    (
        click.Option(["--path"], required=True, type=FOLDER, help="The new directory."),
        click.Option(["--shards"], required=True, type=click.IntRange(1), help="Number of shards."),
        click.Option(
            ["--set", "settings"],
            multiple=True,
            metavar="NAME=VALUE",
            help="A field of StoreConfig.",
        ),
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
