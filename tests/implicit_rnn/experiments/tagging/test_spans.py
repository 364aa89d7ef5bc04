"""F1 by spans, against the rules of the shared task's program written down word by word."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest

from implicit_rnn.experiments.tagging.spans import marks, span_sums

TAGS = ["B-NP", "B-VP", "I-NP", "I-VP", "O"]


def spans(tags: list[str]) -> set[tuple[str, int, int]]:
    """`(kind, first, last)` of every span, by a walk over the words."""
    found, kind, first = set(), "", 0
    for t, tag in enumerate([*tags, "O"]):
        prefix, _, own = tag.partition("-")
        if kind and (prefix != "I" or own != kind):
            found.add((kind, first, t - 1))
            kind = ""
        if own and not kind:
            kind, first = own, t
    return found


def test_every_pair_of_short_sentences():
    sentences = [[*tags] for tags in itertools.product(range(5), repeat=3)]
    pairs = [*itertools.product(sentences, sentences)]
    right, guess = (np.array([pair[side] for pair in pairs]) for side in (0, 1))
    length = np.arange(len(pairs)) % 4
    inside = np.arange(3) < length[:, None]
    both = jax.jit(
        jax.vmap(lambda *of: span_sums(marks(TAGS), *(part[None] for part in of)))
    )(right, guess, inside)  # fmt: skip
    for number, n in enumerate(length):
        true, found = (spans([TAGS[i] for i in of[number, :n]]) for of in (right, guess))
        assert both["f1"][number] == 2 * len(true & found)
        assert both["count_f1"][number] == len(true) + len(found)


def test_a_label_that_training_has_not_seen_is_a_span_that_nobody_finds():
    labels = np.array([[0, -1, 2]])
    sums = span_sums(marks(TAGS), labels, np.array([[0, 2, 2]]), np.ones((1, 3), bool))
    assert (sums["f1"], sums["count_f1"]) == (0, 3 + 1)


@pytest.mark.parametrize("tags", [["NN", "VB"], ["O"], ["B-NP", "O", "-LRB-"]])
def test_other_tags_mark_no_spans(tags):
    assert marks(tags) is None
