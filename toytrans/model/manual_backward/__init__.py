"""Backward passes derived by hand."""
