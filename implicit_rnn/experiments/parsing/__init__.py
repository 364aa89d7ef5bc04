"""Semantic parsing and code generation."""
