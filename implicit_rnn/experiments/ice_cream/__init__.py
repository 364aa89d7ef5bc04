"""The lecture's ice-cream store."""
