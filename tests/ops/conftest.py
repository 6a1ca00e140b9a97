"""The `backend` fixture: every op test runs once per backend; select one by `-k cpu`."""

from __future__ import annotations

import pytest

from . import backends
from .cases import Spec


@pytest.fixture(scope="session", params=backends.available())
def backend(request: pytest.FixtureRequest) -> backends.Backend:
    return backends.load(request.param)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the cases that are too much work for a slow backend."""
    deselected = [item for item in items if is_too_much(item)]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if not is_too_much(item)]


def is_too_much(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    spec = params.get("spec")
    return isinstance(spec, Spec) and spec.work() > backends.max_work(params.get("backend", ""))
