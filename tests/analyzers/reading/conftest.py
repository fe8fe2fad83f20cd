"""Every test that asks for `reader` runs once with each reader of xplane files."""

import pytest


@pytest.fixture(params=["c", "python"])
def reader(request) -> str:
    return request.param
