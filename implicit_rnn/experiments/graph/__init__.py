"""Citation networks labelled by gated graph networks at equilibrium (2018 paper)."""
