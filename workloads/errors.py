"""The one error a caller of this package is expected to show to a person."""


class WorkloadError(ValueError):
    """A request that cannot be built; its message is one clear sentence for the person who asked."""
