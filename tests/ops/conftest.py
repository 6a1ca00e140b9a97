"""The `backend` fixture: every op test runs once per backend that is there; select by `-k cpu`."""

from __future__ import annotations

import pytest

from . import backends


@pytest.fixture(scope="session", params=backends.available())
def backend(request: pytest.FixtureRequest) -> backends.Backend:
    return backends.load(request.param)
