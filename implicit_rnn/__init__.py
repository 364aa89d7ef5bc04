"""Recurrent networks whose states are defined by an equation."""
