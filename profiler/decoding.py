"""Moved to `analyzers.reading.decoding`."""

from analyzers.reading.decoding import *  # noqa: F403
