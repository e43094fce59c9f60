"""Faults with their cards, and exercises in which a fault has to be found."""
