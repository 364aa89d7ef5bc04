"""Semantic parsing and code generation: what a sentence means, or the code it describes.

GEO, JOBS and ATIS are questions with logical forms as Dong and Lapata (2016) prepared them: names
of cities and the like are placeholders already. Many a test pair therefore is a training pair as
well, word by word; the part `unseen` of the test set is without those. Django is lines of its
source code, each with a line of English about it; rare words are copied (`copying.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from implicit_rnn.experiments.data.lines import CorpusError, located
from implicit_rnn.experiments.data.pairs import (
    UNSEEN,
    Pair,
    different,
    evenly,
    left_out,
    padded,
    pairs_task,
)
from implicit_rnn.experiments.data.parallel_text import TextPair, aligned, columns
from implicit_rnn.experiments.parsing.code_tokens import code_tokens
from implicit_rnn.experiments.parsing.copying import lexicon
from implicit_rnn.experiments.parsing.expressions import expression
from implicit_rnn.experiments.task import Task, one_of

DJANGO = {"train": 16_000, "valid": 1000, "test": 1805}  # by the order of lines
GENERATED = {"train": 4000, "valid": 300, "test": 500}


def parsing_task(
    *,
    corpus: Literal["expressions", "geo", "jobs", "atis", "django"] = "expressions",
    path: str | None = None,
    train: int | None = None,
    valid: int | None = None,
    test: int | None = None,
    depth: int = 3,
    seed: int = 0,
    least: int = 1,
    places: int = 1,
    longest: int | None = None,
) -> Task:
    """The meaning of a sentence, token by token (section 4.3 of the X-RNN paper).

    Args:
      corpus: `"expressions"`, generated arithmetic in English; `"geo"` and `"jobs"`, of whose
        training pairs every tenth validates; `"atis"`; `"django"`, split by the order of lines.
      path: the folder with the corpus' files, in place of the data set `semantic_parsing`.
      train, valid, test: how many pairs, evenly out of all; by default all, and of expressions
        4,000, 300 and 500.
      depth: of expressions, how deep they are nested.
      seed: of expressions; no two sets share a sentence.
      least: how often a word must be in the training set to be known (`copying.py`).
      places: how many unknown words of a sentence are told apart, and so can be copied.
      longest: training pairs with more tokens on either side are left out, other pairs count as
        wrong; by default none is too long.
    """
    folder = None if path is None else Path(path)
    wanted = {"train": train, "valid": valid, "test": test}
    if corpus == "expressions":
        splits = _generated({k: v or GENERATED[k] for k, v in wanted.items()}, depth, seed)
        return text_task(splits, least=least, places=places, longest=longest)
    splits = read_splits(corpus, folder)
    seen = {*splits["train"]} | ({*splits["valid"]} if corpus in ("geo", "jobs") else set())
    splits = {name: evenly(part, wanted[name]) for name, part in splits.items()}
    unseen = [pair for pair in splits["test"] if pair not in seen]
    if unseen and len(unseen) < len(splits["test"]):
        splits["unseen"] = unseen
    return text_task(splits, least=least, places=places, longest=longest)


def read_splits(corpus: str, folder: Path | None = None) -> dict[str, list[TextPair]]:
    """The pairs of a corpus by split.

    Args:
      corpus: `"geo"`, `"jobs"`, `"atis"` or `"django"`.
      folder: with its files, in place of the data set's.
    """

    one_of("corpus", corpus, ("geo", "jobs", "atis", "django"))

    def file(name: str) -> Path:
        return located("semantic_parsing", name, folder, verified=True)

    if corpus == "django":
        files = file("django_all.anno"), file("django_all.code")
        pairs = [(code_tokens(a), code_tokens(b)) for a, b in aligned(*files)]
        if len(pairs) != sum(DJANGO.values()):
            raise CorpusError(
                f"{files[0]} has {len(pairs):,} lines, {sum(DJANGO.values()):,} wanted: the split "
                "goes by their order"
            )
        ends = np.cumsum([0, *DJANGO.values()])
        return {name: pairs[a:b] for name, a, b in zip(DJANGO, ends[:-1], ends[1:], strict=True)}
    found, test = columns(file(f"{corpus}_train.tsv")), columns(file(f"{corpus}_test.tsv"))
    if corpus == "atis":
        return {"train": found, "valid": columns(file("atis_dev.tsv")), "test": test}
    return {
        "train": [pair for number, pair in enumerate(found) if number % 10 != 9],
        "valid": found[9::10],
        "test": test,
    }


def text_task(
    splits: Mapping[str, Sequence[TextPair]],
    *,
    least: int = 1,
    places: int = 1,
    longest: int | None = None,
) -> Task:
    """The task of pairs of tokenised texts that are there already.

    Args:
      splits: pairs by split.
      least, places, longest: as for `parsing_task`.
    """
    words = lexicon(splits["train"], least=least, places=places)
    texts = {name: list(part) for name, part in splits.items()}
    numbers = {name: words.numbers(part) for name, part in texts.items()}
    kept = [_whole(pair) and _fits(pair, longest) for pair in numbers["train"]]
    texts["train"] = list(itertools.compress(texts["train"], kept))
    numbers["train"] = list(itertools.compress(numbers["train"], kept))
    if not numbers["train"]:
        raise ValueError("no training pair is short enough: raise task.longest")
    arrays = {name: padded([_cut(p, longest) for p in part]) for name, part in numbers.items()}
    sizes = words.sizes()
    task = pairs_task(arrays, words.words(), sizes["target_vocabulary"])
    return task._replace(
        details=task.details
        | {
            "texts": texts,
            "lexicon": words,
            "notes": left_out(kept.count(False)),
            "keep": {"vocabulary.json": words.content()},
        }
    )


def _whole(pair: Pair) -> bool:
    return UNSEEN not in pair[1]


def _fits(pair: Pair, longest: int | None) -> bool:
    return longest is None or max(map(len, pair)) <= longest


def _cut(pair: Pair, longest: int | None) -> Pair:
    """The pair itself, or the beginning of a pair that is too long: nothing gets that right."""
    if _fits(pair, longest):
        return pair
    source, target = (side[:longest] for side in pair)
    return source, np.append(target[:-1], np.int32(UNSEEN))


def _generated(counts: Mapping[str, int], depth: int, seed: int) -> dict[str, list[TextPair]]:
    if depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    return different(
        lambda rng, count: [expression(rng, depth) for _ in range(count)],
        counts,
        seed,
        lambda pair: pair[0],
    )
