"""Random problems, settings and transforms for `solvers`, and a judge that trusts none of them."""
