"""Tree traversal from two orders to a third."""
