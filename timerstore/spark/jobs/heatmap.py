"""Plot due messages by day and hour, counted as in `forecast`, to heatmap.png in --out."""

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from timerstore.spark.jobs import forecast, plots
from timerstore.spark.jobs.job import FOLDER, Job, Outcome, Run, need_there


@dataclass(frozen=True, slots=True)
class Args:
    """Options of the job."""

    path: str
    out: Path
    begin: str = "now"
    horizon: str = "30d"
    lake: Path | None = None


def work(run: Run, args: Args) -> Outcome:
    """Count the messages, and write the plots."""
    need_there(args.path)
    hours = _hours(args)
    counts, source = forecast.build(run.spark, hours)
    rows = [row.asDict() for row in counts.collect()]
    figures = forecast.figures_of(rows, 3_600_000) | {"as_of": source.state}
    by_hour: dict[int, int] = {}
    for row in rows:
        by_hour[row["bucket"]] = by_hour.get(row["bucket"], 0) + row["due"]
    title = f"Due by hour: {figures['due']:,}"
    figures["files"] = {"plot": str(plots.heat_plot(args.out / "heatmap.png", by_hour, title))}
    if args.lake is not None:
        figures["lake"] = forecast.lake_counts(args.lake)
        days = forecast.days_of_lake(figures["lake"]["by_day"])
        drawn = plots.due_plot(args.out / "lake.png", days, "In the cold lake, by day")
        figures["files"]["lake"] = str(drawn)
    run.tell(f"{figures['due']:,} due; {figures['files']['plot']}")
    return Outcome(figures)


def _hours(args: Args) -> forecast.Args:
    return forecast.Args(args.path, bucket="1h", begin=args.begin, horizon=args.horizon)


JOB = Job(
    "heatmap",
    Args,
    work,
    tuple(
        click.Option(["--out"], required=True, type=FOLDER, help="Output directory.")
        if option.name == "out"
        else option
        for option in forecast.OPTIONS
    ),
)
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
