"""Associative memories of images (2018 paper, section 4.1)."""
