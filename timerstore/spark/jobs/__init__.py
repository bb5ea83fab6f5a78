"""The jobs: `timerstore-spark <job>`, one file a job, each submittable by itself.

A job is `build(spark, args)`, which plans, and `main(argv)`, which runs: exit status 0 fine, 2 a
check failed, 1 an error. What they share stands in job.py (options, session, report), what is pure
in slo.py, lake.py, and parquet_tasks.py, what runs in executors in the files
named *_worker.py: a function of `__main__` would be pickled with the whole job, one of a module by
name.
"""
