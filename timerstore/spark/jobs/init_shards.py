"""Create N shards and their cluster.json. Needs no Spark.

Settings are fields of StoreConfig, as --set precision_ms=100; what makes the files' sizes is kept
by the files, limits by cluster.json.

Data:     a new directory; each shard is opened once, so that its files are there.
Holds:    again on the same directory with the same number: nothing is changed.
"""

import dataclasses
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import timerstore
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError
from timerstore.spark.jobs.job import FOLDER, Job, Outcome, Run, parse_settings


@dataclass(frozen=True, slots=True)
class Args:
    """Where, how many, and what is not as by default."""

    path: Path
    shards: int
    settings: tuple[str, ...] = ()


def build(args: Args) -> StoreConfig:
    """The configuration of every shard."""
    return config_of(args.settings)


def work(run: Run, args: Args) -> Outcome:
    """Make them."""
    config = build(args)
    with timerstore.open_shards(args.path, args.shards, config, threads=False):
        pass
    run.tell(f"{args.shards} shards in {args.path}")
    return Outcome({"path": str(args.path), "shards": args.shards})


def config_of(settings: Sequence[str]) -> StoreConfig:
    """Read `name=value` texts; ConfigError names all that is wrong."""
    kinds = {one.name: type(one.default) for one in dataclasses.fields(StoreConfig)}
    given: dict[str, object] = {}
    problems = []
    for name, text in parse_settings(settings).items():
        kind = kinds.get(name)
        if kind is None:
            problems.append(f"--set: {name} is no setting of a store; known: {', '.join(kinds)}")
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
        click.Option(["--path"], required=True, type=FOLDER, help="Directory."),
        click.Option(["--shards"], required=True, type=click.IntRange(1), help="How many."),
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
