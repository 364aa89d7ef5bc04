"""Tiny Shakespeare, a character at a time."""
