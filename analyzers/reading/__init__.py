"""Bytes to columns: finds trace files and turns them into numpy arrays, without interpreting them."""
