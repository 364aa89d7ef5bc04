"""A citation network that nobody wrote: documents of several topics that mostly cite their own."""

from __future__ import annotations

import numpy as np

from implicit_rnn.experiments.graph.graphs import Graph, checked_graph


def block_graph(
    seed: int,
    nodes: int = 1_000,
    classes: int = 5,
    *,
    degree: float = 4.0,
    homophily: float = 0.8,
    words: int = 200,
    length: int = 12,
    topical: float = 0.25,
) -> Graph:
    """A stochastic block model with a bag of words at every node.

    Args:
      seed: the same seed gives the same graph.
      nodes: documents.
      classes: topics, of which each document has one.
      degree: neighbours that a document has on average, at most: repetitions count once.
      homophily: share of citations that stay within a topic; the others go anywhere.
      words: of the vocabulary, divided evenly among the topics.
      length: words drawn for a document.
      topical: share of them that belong to its topic; the others may be any.

    Returns:
      A graph with inputs `[nodes, words]`, 1 where a word occurs.
    """
    if not (0 <= homophily <= 1 and 0 <= topical <= 1):
        raise ValueError(
            f"homophily and topical must lie between 0 and 1, got {homophily} and {topical}"
        )
    if words < classes:
        raise ValueError(f"{classes} topics need a word each at least, got {words} words")
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, nodes)
    citing, cited = rng.integers(0, nodes, (2, round(nodes * degree / 2)))
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], labels[citing])
    past = np.searchsorted(labels[order], labels[citing], side="right")
    own = order[rng.integers(first, past)]
    cited = np.where(rng.uniform(size=cited.shape) < homophily, own, cited)

    share = words // classes
    drawn = rng.integers(0, words, (nodes, length))
    special = labels[:, None] * share + rng.integers(0, share, drawn.shape)
    drawn = np.where(rng.uniform(size=drawn.shape) < topical, special, drawn)
    inputs = np.zeros((nodes, words), np.float32)
    np.put_along_axis(inputs, drawn, 1, axis=1)
    return checked_graph(
        inputs, np.stack([citing, cited], axis=1), labels, classes, where="block_graph"
    )
