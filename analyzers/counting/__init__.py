"""Columns to facts: executions, self time, passes, layers, chunks, the sort table, buffers."""
