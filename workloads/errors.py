"""The one error a caller of this package is expected to show to a person."""


class WorkloadError(ValueError):
    """A request that cannot be built. Its message is one clear sentence: what was asked, why not, what to do."""
