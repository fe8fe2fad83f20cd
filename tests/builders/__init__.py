"""Builders of inputs whose right answers are known by construction."""
