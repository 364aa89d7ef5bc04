"""Arithmetic in English and as nested expressions: a small semantic parsing of our own."""

from __future__ import annotations

import numpy as np

from implicit_rnn.experiments.data.parallel_text import TextPair

NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
)  # fmt: skip
# What is said before, between and what is written.
BINARY = (
    ("the sum of", "and", "add"),
    ("the product of", "and", "multiply"),
    ("the larger of", "and", "max"),
    ("what is left of", "without", "subtract"),
)
UNARY = (("the square of", "square"), ("the opposite of", "negate"))


def expression(rng: np.random.Generator, depth: int) -> TextPair:
    """A phrase and the expression that it means, nested at most so deep.

    `the sum of two and the square of three` is `( add 2 ( square 3 ) )`.

    Args:
      rng: draws.
      depth: 0 gives a number.
    """
    kind = rng.random()
    if depth < 1 or kind < 0.15:
        number = int(rng.integers(len(NUMBERS)))
        return (NUMBERS[number],), (str(number),)
    if kind < 0.35:
        words, name = UNARY[rng.integers(len(UNARY))]
        said, meant = expression(rng, depth - 1)
        return (*words.split(), *said), ("(", name, *meant, ")")
    words, between, name = BINARY[rng.integers(len(BINARY))]
    (first, left), (second, right) = (expression(rng, depth - 1) for _ in range(2))
    return (*words.split(), *first, between, *second), ("(", name, *left, *right, ")")
