"""The dashboard: grafana.json, as Grafana imports it; its data source is a Prometheus."""

from importlib import resources


def dashboard() -> str:
    """Give it as text."""
    return (
        resources.files("timerstore.telemetry.prometheus")
        .joinpath("grafana.json")
        .read_text("utf-8")
    )
