"""List all jobs with their purpose, without importing them."""

JOBS = {
    "init-shards": "Create N shards and their cluster.json.",
    "bulk-schedule": "Schedule the rows of a table into the shards, each once.",
    "ingest": "Ingest committed rows into shards that are not open.",
    "stream-schedule": "Schedule the rows of a stream into the shards, exactly once.",
    "stream-deliveries": "Stream delivered messages to Parquet, Kafka or the console.",
    "audit": "Compare scheduled with delivered messages, and check an SLO.",
    "cold-append": "Append far timers to a Parquet lake, by day of delivery.",
    "promote": "Move near days of the lake into the shards, each file once.",
    "forecast": "Count due messages by time and shard, and find the peak.",
    "heatmap": "Plot due messages by day and hour.",
    "export": "Write the messages of a store to Parquet.",
    "replay": "Schedule an export again, with its times shifted.",
    "reshard": "Move pending messages from N shards to M.",
}


def module_of(job: str) -> str:
    """Return the module of a job."""
    return f"timerstore.spark.jobs.{job.replace('-', '_')}"
