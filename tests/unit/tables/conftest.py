"""Columns need pyarrow."""

import pytest

pytest.importorskip("pyarrow")
