"""Images read pixel by pixel."""
