"""Register `format("timerstore")`: Spark imports every top-level module named pyspark_*.

Raises: nothing, because an error here would hide all other sources found in this way. The function
    `timerstore.spark.register` raises the import error instead.
"""

try:
    from timerstore.spark.datasource import TimerStoreDataSource as DefaultSource
except Exception:  # noqa: BLE001, S110
    pass
else:
    __all__ = ["DefaultSource"]
