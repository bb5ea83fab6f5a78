"""Every job and what it is for, so that they can be listed without loading them."""

JOBS = {
    "init-shards": "Create N shards and their cluster.json.",
    "bulk-schedule": "Schedule a table's rows into the shards, each once.",
    "ingest": "Apply what was staged to shards that nobody has open.",
    "stream-schedule": "Schedule a stream's rows into the shards, exactly once.",
    "stream-deliveries": "Stream what was delivered to Parquet, Kafka or the console.",
    "audit": "Compare what was scheduled with what was delivered; judge it by an SLO.",
    "cold-append": "Put far timers into a Parquet lake by day of delivery.",
    "promote": "Move the lake's days that come near into the shards, each file once.",
    "forecast": "Count what is due by time, shard and topic; find the peak.",
    "heatmap": "Draw what is due by day and hour.",
    "export": "Write the messages of a store to Parquet.",
    "replay": "Schedule an export again, its times moved.",
    "reshard": "Move what still waits from N shards to M.",
}


def module_of(job: str) -> str:
    """Where the job stands."""
    return f"timerstore.spark.jobs.{job.replace('-', '_')}"
