"""Makes evidence: runs workloads under the profiler, stores runs, and carries the command line."""
