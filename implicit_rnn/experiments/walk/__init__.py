"""The biased random walk of the 2017 paper."""
