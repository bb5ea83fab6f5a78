"""The jobs of the command `timerstore-spark`, one file per job.

Each file can also be passed to spark-submit. A job has `build(spark, args)`, which plans, and
`main(argv)`, which runs. Exit status 0 is success, 2 a failed check, 1 an error.

job.py has the common options, the session and the report. slo.py, lake.py and parquet_tasks.py do
not use Spark. Code for the executors is in files named *_worker.py: Spark pickles a function of
`__main__` with the whole job, but a function of another module by name.
"""
