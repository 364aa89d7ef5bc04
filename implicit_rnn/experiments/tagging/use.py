"""A trained tagger in use: from words to tags, without the corpus that it was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from implicit_rnn import sequence
from implicit_rnn.cells import Cell
from implicit_rnn.experiments import plots, runs
from implicit_rnn.experiments.tagging import (
    Sentence,
    Vocabulary,
    bare_task,
    sentence_source,
    sentences,
    treebank_brackets,
    without_hyphens,
)
from implicit_rnn.experiments.tagging.model import word_tagger
from implicit_rnn.experiments.train import how
from implicit_rnn.models import Tagger
from implicit_rnn.training import folder as folders
from implicit_rnn.training import restore
from implicit_rnn.training.sources import Source

_BATCH = 50


class Trained(NamedTuple):
    """A tagger with what it has learnt."""

    vocabulary: Vocabulary
    model: Tagger
    params: Any
    settings: dict[str, Any]  # of the solves


class Tagged(NamedTuple):
    """A sentence with tags.

    Attributes:
      words, tags: of one length.
      unknown: which words are not in the vocabulary.
      past: `[time, channels]`, the share of the step before in the switch of an implicit layer; the
        rest is that of the step after. None without a switch.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    unknown: np.ndarray
    past: np.ndarray | None


def load(output: Path) -> Trained:
    """The best state of a run; its folder is all that is needed.

    Args:
      output: the run's folder, or that of an experiment with a single run.
    """
    folder = runs.only_run(output)
    config = runs.configuration(folder)
    if config.model["name"] != "word_tagger":
        raise folders.FolderError(f"{folder} is no tagger of words but a {config.model['name']}")
    words = Vocabulary.load(folder / "vocabulary.json")
    task = bare_task(words, config.training.batch)
    options = {key: value for key, value in config.model.items() if key != "name"}
    model = word_tagger(task, **options)
    params = restore(task, model, **how(config), folder=folder).params
    return Trained(words, model, params, config.solver.exact().settings())


def tag_text(trained: Trained, text: str) -> list[Tagged]:
    """Tags the sentences of a text; see `tokenise.py` for what is a token.

    Brackets and compounds are written as in the corpus of the run, as its vocabulary tells.
    """
    found, words = sentences(text), trained.vocabulary.words
    if "-LRB-" in words or "-lrb-" in words:
        found = [treebank_brackets(tokens) for tokens in found]
    # 6 % of the treebank's vocabulary are compounds, and less than 1 % of that of UD.
    if sum("-" in word[1:-1] for word in words) < 0.03 * len(words):
        found = [without_hyphens(tokens) for tokens in found]
    return tag(trained, found)


def tag(trained: Trained, tokens: Sequence[Sequence[str]]) -> list[Tagged]:
    """Tags sentences that are tokens already; one without any has no tags."""
    if not tokens:
        return []
    words, model, params, settings = trained
    some = words.tags[0]  # a source wants tags; nothing reads them here
    source = sentence_source([Sentence(tuple(t), (some,) * len(t)) for t in tokens], words)
    layer = model.encoder.cells[0]

    @jax.jit
    def run(params: Any, batch: Any) -> tuple[jax.Array, jax.Array | None]:
        inputs = model.embed(params, batch)
        scores, encoded = model.scores(params, inputs, batch.length, solve=settings)
        past = None
        if isinstance(layer, Cell) and layer.switch is not None and layer.stencil == (-1, 1):
            past = jax.vmap(
                lambda x, states, length: sequence.switch(
                    layer, params["encoder"][0], x, states, length=length
                )[:, 0]
            )(inputs, encoded.states[0], batch.length)
        return model.predict(scores), past

    found: dict[int, Tagged] = {}
    for index, time in source.plan(min(_BATCH, len(tokens)), 1, None):
        batch = source.batch((index, time))
        labels, past = run(params, batch)
        for row, number in enumerate(index):
            if number < 0:
                continue
            length = len(tokens[number])
            found[int(number)] = Tagged(
                tuple(tokens[number]),
                tuple(words.tags[label] for label in np.asarray(labels)[row, :length]),
                batch.words[row, :length] == 0,
                None if past is None else np.asarray(past)[row, :length],
            )
    return [found[number] for number in range(len(tokens))]


def picture(sentence: Tagged, path: Path) -> Path:
    """Figures 3 and 4 of the 2017 paper: where each word of a sentence looks, past or future."""
    return plots.listening(
        require_switch(sentence),
        path,
        "Where each word looks: to the past, or to the future",
        words=[f"{w} ({t})" for w, t in zip(sentence.words, sentence.tags, strict=True)],
    )


def require_switch(sentence: Tagged) -> np.ndarray:
    """The switch of a sentence, `[time, channels]`, or what to do where there is none."""
    if sentence.past is None:
        raise folders.FolderError(
            'this run has no switch to draw: train one with model.encoder = "igru" or "ilstm"'
        )
    return sentence.past


def predictions(
    model: Tagger, params: Any, source: Source, settings: dict[str, Any], size: int
) -> Iterator[tuple[Any, np.ndarray]]:
    """`(batch, labels)` for every batch of a source, labels `[batch, time]` as predicted."""

    @jax.jit
    def run(params: Any, batch: Any) -> jax.Array:
        inputs = model.embed(params, batch)
        return model.predict(model.scores(params, inputs, batch.length, solve=settings)[0])

    for entry in source.plan(size, 2, None):
        batch = source.batch(entry)
        yield batch, np.asarray(run(params, batch))
