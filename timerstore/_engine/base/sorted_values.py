"""Look up values in a sorted array."""

import numpy as np
import numpy.typing as npt

from timerstore._engine.base.argument_types import Int64Array


def are_in(values: npt.NDArray[np.integer], known: Int64Array) -> npt.NDArray[np.bool_]:
    """Return for each value whether it is one of `known`, which ascends."""
    if not len(known):
        return np.zeros(len(values), bool)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[at] == values
    return found
