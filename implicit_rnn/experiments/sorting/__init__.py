"""Sorting integers by writing them."""
