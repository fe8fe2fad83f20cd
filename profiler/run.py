"""Moved to `analyzers.reading.run`, so that `analyzers.load` can open runs."""

from analyzers.reading.run import *  # noqa: F403
from analyzers.reading.run import _check_file, _read_manifest  # noqa: F401
