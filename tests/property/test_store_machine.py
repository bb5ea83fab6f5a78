"""The state machine of a store, also with asynchronous puts, power cuts and small batches."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.property.store_machine import StoreMachine
from tests.support.amounts import AMOUNTS, both
from tests.support.driver import Driver, PowerDriver
from tests.support.durable.shadow_disk import ShadowDisk
from tests.support.inside.sizes import SMALL, replaced
from timerstore import StoreConfig


class AsyncStoreMachine(StoreMachine):
    """The same machine with asynchronous puts, which a kill does not lose.

    Several messages of a level are delivered concurrently.
    """

    flush = "async"

    def make(self, config: StoreConfig, seed: int) -> Driver:
        return Driver(self.root, replace(config, level_async=True, level_pending_max=3))


class PowerCutMachine(StoreMachine):
    """The same machine with power cuts, which keep any part of the unsynced data."""

    shadow: ShadowDisk | None = None

    def make(self, config: StoreConfig, seed: int) -> Driver:
        self.shadow = ShadowDisk(seed).__enter__()
        return PowerDriver(self.root, config, self.shadow)

    def end(self) -> None:
        if self.shadow is not None:
            self.shadow.__exit__(None, None, None)


class SmallBatchMachine(StoreMachine):
    """The same machine with batches that are full after a few messages."""

    def make(self, config: StoreConfig, seed: int) -> Driver:
        self.small = replaced(SMALL)
        self.small.__enter__()
        return super().make(config, seed)

    def end(self) -> None:
        self.small.__exit__(None, None, None)


MACHINES = [StoreMachine, AsyncStoreMachine, PowerCutMachine, SmallBatchMachine]


EXAMPLES = "store machine examples"
"""Stands for all examples: the number comes from the profile."""


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("count", both(EXAMPLES))
def test_store_agrees_with_model(count: int, machine: type[StoreMachine]) -> None:
    asked = settings() if count == AMOUNTS[EXAMPLES].all else settings(max_examples=count)
    run_state_machine_as_test(machine, settings=asked)
