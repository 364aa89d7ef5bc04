"""Training: what keeps implicit networks solvable from the first update to the last."""

from implicit_rnn.training.recipe import Recipe

__all__ = ["Recipe"]
