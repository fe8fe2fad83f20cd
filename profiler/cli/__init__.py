"""The command line: one module per command, each of them arguments, one call, one rendering, an exit code."""
