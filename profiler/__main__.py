"""`python -m profiler`: the command line without an installed `moe-prof`."""

from profiler.cli.main import main

main()
