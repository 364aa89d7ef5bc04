"""Ratios of cost and accuracy against peers, measured side by side in one run."""
