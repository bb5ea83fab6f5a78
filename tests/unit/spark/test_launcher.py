"""The command `timerstore-spark` without a JVM: jobs, arguments, exit statuses and reports."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from timerstore.errors import ConfigError
from timerstore.spark.jobs import launcher
from timerstore.spark.jobs.names import JOBS, module_of

ROOT = Path(__file__).resolve().parents[3]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    got = capsys.readouterr()
    return got.out + got.err


# ---------------------------------------------------------------- choosing


def test_every_job_is_listed_and_has_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["--help"]) == 0
    text = said(capsys)
    for job in JOBS:
        assert job in text
        assert launcher.main(["which", job]) == 0
        path = Path(said(capsys).strip())
        assert path.name == f"{job.replace('-', '_')}.py"
        assert 'if __name__ == "__main__":' in path.read_text("utf-8"), path


@pytest.mark.parametrize("job", JOBS)
def test_every_job_has_help(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyspark")
    assert launcher.main([job, "--help"]) == 0
    text = said(capsys)
    assert "--report" in text
    assert "--run-id" in text
    assert "Invariants:" not in text


def test_command_without_job_prints_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main([]) == 1
    assert "usage:" in said(capsys)


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["--version"]) == 0
    assert re.fullmatch(r"timerstore-spark ([0-9.]+|\(not installed\))\n", capsys.readouterr().out)


@pytest.mark.parametrize("argv", [["audits"], ["which", "audits"]])
def test_unknown_job_is_rejected(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(argv) == 1
    text = said(capsys)
    assert "no job is named 'audits'; did you mean audit?" in text
    assert "bulk-schedule" in text


def test_which_requires_one_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.main(["which"]) == 1
    assert launcher.main(["which", "audit", "export"]) == 1
    assert "wanted one job" in said(capsys)


@pytest.mark.parametrize("missing", ["pyspark", "click"])
def test_job_reports_missing_package(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from timerstore.spark.jobs.launcher import main\n"
        "assert main(['--help']) == 0\n"
        "sys.exit(main(['audit', '--path', 'x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 1, done.stderr
    assert (
        f"audit needs {missing}, which is not installed: pip install '.[spark]' in a checkout"
        in (done.stderr)
    )
    assert "Traceback" not in done.stderr


def test_command_raises_unrelated_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launcher, "module_of", lambda job: "timerstore.no_such_room")
    with pytest.raises(ModuleNotFoundError):
        launcher.main(["audit"])


# ---------------------------------------------------------------- running


@dataclass(frozen=True, slots=True)
class Args:
    number: int


def job(outcome: Any) -> Any:
    pytest.importorskip("pyspark")
    click = pytest.importorskip("click")
    from timerstore.spark.jobs.job import Job, Outcome

    def work(run: Any, args: Args) -> Outcome:
        if isinstance(outcome, Exception):
            raise outcome
        run.tell("half-way")
        return Outcome({"number": args.number}, tuple(outcome))

    option = click.Option(["--number"], type=click.IntRange(0), required=True)
    return Job("audit", Args, work, (option,))


def test_job_writes_report_on_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "new" / "report.json"
    assert job([]).main(["--number", "5", "--report", str(report), "--run-id", "r1"]) == 0
    told = json.loads(report.read_text("utf-8"))
    assert told["outcome"] == "fine"
    assert told["run_id"] == "r1"
    assert told["figures"] == {"number": 5}
    assert told["args"] == {"number": 5}
    assert told["problems"] == []
    assert "audit: half-way" in capsys.readouterr().err
    assert [one.name for one in report.parent.iterdir()] == ["report.json"]


def test_job_exits_2_when_check_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert job(["lost: 5"]).main(["--number", "5", "--report", str(report), "--quiet"]) == 2
    assert json.loads(report.read_text("utf-8"))["outcome"] == "check failed"
    assert capsys.readouterr().err == "timerstore-spark audit: lost: 5\n"


def test_run_says_that_it_starts_a_session(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    from timerstore.spark.jobs import job as jobs

    class Session:
        dataSource = SimpleNamespace(register=lambda source: None)  # noqa: N815 - Spark's

        def stop(self) -> None:
            """Stop."""

    monkeypatch.setattr(jobs, "make_session", lambda _name, _common: Session())
    run = jobs.Run("audit", jobs.Common())
    assert isinstance(run.spark, Session)
    assert run.spark is run.spark
    run.close()
    assert capsys.readouterr().err.count("audit: starting a Spark session\n") == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConfigError(["one", "two"]), "one; two"),
        (OSError(28, "No space left"), "OSError: [Errno 28] No space left"),
        (RuntimeError("[JAVA_GATEWAY_EXITED] Java"), "it needs Java 17 or newer"),
        (KeyError(), "KeyError"),
    ],
)
def test_job_exits_1_and_reports_error(
    error: Exception, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert job(error).main(["--number", "5", "--report", str(report)]) == 1
    told = json.loads(report.read_text("utf-8"))
    assert told["outcome"] == "error"
    assert text in told["problems"][0]
    err = capsys.readouterr().err
    assert text in err
    assert "Traceback" not in err
    assert job(error).main(["--number", "5", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [[], ["--number", "-1"], ["--number", "x"], ["--number", "5", "more"], ["--numbers", "5"],
     ["--number", "5", "--report"]],
)  # fmt: skip
def test_job_exits_1_for_invalid_arguments(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert job([]).main(argv) == 1
    assert "Error: " in capsys.readouterr().err


def test_parse_settings_splits_at_first_equals_sign() -> None:
    pytest.importorskip("pyspark")
    from timerstore.spark.jobs.job import parse_settings

    assert parse_settings(["a.b=c", "d=e=f", "g="]) == {"a.b": "c", "d": "e=f", "g": ""}
    with pytest.raises(ConfigError) as error:
        parse_settings(["a", "=b", "c=d"])
    assert len(error.value.problems) == 2


def test_module_of_converts_job_name() -> None:
    assert module_of("bulk-schedule") == "timerstore.spark.jobs.bulk_schedule"


@pytest.mark.parametrize("text", ["9" * 5000, "--5", "-", "1.5", "\u0661"])
def test_init_shards_rejects_invalid_numbers(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyspark")
    given = ["--path", str(tmp_path / "s"), "--shards", "1", "--set", f"precision_ms={text}"]
    assert launcher.main(["init-shards", *given]) == 1
    assert "precision_ms: wanted int" in said(capsys)
    assert not (tmp_path / "s").exists()
