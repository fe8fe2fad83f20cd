"""Reads the evidence a profiler left behind: trace files, compiled modules, buffer assignments. Never imports jax."""
