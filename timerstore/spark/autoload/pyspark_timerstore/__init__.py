"""Makes `format("timerstore")` known: Spark imports every top-level module named pyspark_*.

Holds:    never raises: an error here would hide every other source that is found this way. What is
          wrong is said again, aloud, by `timerstore.spark.register`.
"""

try:
    from timerstore.spark.datasource import TimerStoreDataSource as DefaultSource
except Exception:  # noqa: BLE001, S110
    pass
else:
    __all__ = ["DefaultSource"]
