"""Tests on eight virtual devices: `tests/test_devices.py` runs them in a process of their own."""
