"""Reproductions of papers, a folder each, and what only they share."""
