"""Polyphonic music, a frame at a time."""
