"""Check the configuration and the clock that a caller passes to open a store."""

from timerstore.clock import Clock
from timerstore.config import StoreConfig
from timerstore.errors import ConfigError


def check_config(config: object, clock: object) -> None:
    """Raise ConfigError unless these are a StoreConfig (or None) and a Clock (or None)."""
    problems = []
    if config is not None and not isinstance(config, StoreConfig):
        problems.append(f"config: wanted a StoreConfig, got {type(config).__name__}")
    elif config is not None and ":" in config.store_address[0]:
        problems.append(
            f"store_host: wanted an IPv4 address (this release only reads IPv6), got "
            f"{config.store_host!r}"
        )
    if clock is not None and not isinstance(clock, Clock):
        problems.append(f"clock: wanted a Clock, got {type(clock).__name__}")
    if problems:
        raise ConfigError(problems)
