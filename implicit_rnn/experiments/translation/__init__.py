"""Translation by pieces of words."""
