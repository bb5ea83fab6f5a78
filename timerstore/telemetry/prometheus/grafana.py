"""The Grafana dashboard grafana.json. Its data source is a Prometheus server."""

from importlib import resources


def dashboard() -> str:
    """Return the dashboard as JSON text, for import into Grafana."""
    return (
        resources.files("timerstore.telemetry.prometheus")
        .joinpath("grafana.json")
        .read_text("utf-8")
    )
