"""Logical inference between two formulas."""
