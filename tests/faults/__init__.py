"""What goes wrong around a run: signals, full disks, damaged files, odd configurations and data."""
