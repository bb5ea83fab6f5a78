"""`python -m timerstore.telemetry.prometheus dashboard|metrics`: print the dashboard or the metrics
page.
"""

import sys

from timerstore._engine.base.printing import note, say
from timerstore.telemetry.metric_families import metrics_page
from timerstore.telemetry.prometheus.grafana import dashboard

_WHAT = {"dashboard": dashboard, "metrics": metrics_page}


def main(argv: list[str]) -> int:
    """Print one of them."""
    if len(argv) != 1 or argv[0] not in _WHAT:
        note(f"wanted one of {', '.join(_WHAT)}, got {' '.join(argv) or 'nothing'}")
        return 2
    say(_WHAT[argv[0]]().removesuffix("\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
