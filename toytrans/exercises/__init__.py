"""Exercises in which a fault has to be found, and the results of the page in which models learn."""
