"""Labels that need one pass over a sequence, and labels that need two."""
