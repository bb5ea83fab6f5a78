"""Message servers behind a socket, each through its usual Python client, for `bench_net`."""

from benchmarks.served import of_beanstalkd, of_redis, of_timerstore
from benchmarks.served.contract import Served

ALL: tuple[Served, ...] = (*of_timerstore.SERVED, *of_redis.SERVED, *of_beanstalkd.SERVED)
"""In the order of the table."""
