"""Diagnose a run from its record alone."""
