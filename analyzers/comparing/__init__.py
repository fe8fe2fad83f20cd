"""Facts to verdicts: what differs between two traces, and whether the difference can be believed."""
