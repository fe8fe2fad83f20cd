"""Verdicts to eyes: tables and pages. No arithmetic happens here."""
