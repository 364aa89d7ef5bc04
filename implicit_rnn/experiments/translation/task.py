"""Translation: Multi30k, a subset of IWSLT'14, or a tiny language, as pieces of words."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from implicit_rnn.experiments.data.lines import located
from implicit_rnn.experiments.data.pairs import different, left_out, padded, pairs_task
from implicit_rnn.experiments.data.parallel_text import aligned
from implicit_rnn.experiments.task import Task, one_of
from implicit_rnn.experiments.translation.subwords import Subwords, subwords
from implicit_rnn.experiments.translation.toy_language import sentence

# Of the real corpora: the languages, and the beginning of the names of the files by split.
FILES = {
    "multi30k": (
        ("en", "de"),
        {
            name: f"{part}.lc.norm.tok"
            for name, part in {
                "train": "train", "valid": "val", "test": "test_2016_flickr",
                "test_2017_flickr": "test_2017_flickr",
            }.items()
        },
    ),
    "iwslt14_subset": (
        ("de", "en"), {"train": "train_lowres", "valid": "valid", "test": "test"}
    ),
}  # fmt: skip
_DATA = {"multi30k": "multi30k", "iwslt14_subset": "iwslt14_de_en"}
GENERATED = {"train": 4000, "valid": 200, "test": 200}


def translation_task(
    *,
    corpus: Literal["toy", "multi30k", "iwslt14_subset"] = "toy",
    path: str | None = None,
    train: int | None = None,
    valid: int | None = None,
    test: int | None = None,
    seed: int = 0,
    merges: int = 4000,
    longest: int | None = None,
) -> Task:
    """A sentence in another language, piece by piece (section 4.4 of the X-RNN paper).

    Args:
      corpus: `"toy"`, a generated language; `"multi30k"`, English to German, descriptions of
        pictures, tested on those of 2016 (`test`) and of 2017 (`test_2017_flickr`);
        `"iwslt14_subset"`, German to English, talks: the whole validation and test sets, but 8,639
        of the 160,239 training pairs only.
      path: the folder with the corpus' files, in place of the data set's own.
      train, valid, test: how many pairs, the first ones; by default all, and of the toy language
        4,000, 200 and 200.
      seed: of the toy language; no two sets share a sentence.
      merges: of the byte-pair encoding that both languages share (`bpe.py`).
      longest: training pairs with more pieces on either side are left out; by default none.
    """
    one_of("corpus", corpus, ("toy", *FILES))
    wanted = {"train": train, "valid": valid, "test": test}
    if corpus == "toy":
        counts = {name: count or GENERATED[name] for name, count in wanted.items()}
        texts = different(
            lambda rng, count: [sentence(rng) for _ in range(count)],
            counts,
            seed,
            lambda pair: pair[0],
        )
    else:
        folder, (codes, files) = None if path is None else Path(path), FILES[corpus]
        texts = {}
        for name, part in files.items():
            sides = [
                located(_DATA[corpus], f"{part}.{each}", folder, verified=True) for each in codes
            ]
            texts[name] = aligned(*sides)[: wanted.get(name, test)]
    return translated_task(texts, subwords(texts["train"], merges), longest)


def languages(corpus: str) -> tuple[str, str]:
    """From which language to which; the words of the tiny one look like English."""
    return FILES[corpus][0] if corpus in FILES else ("en", "en")


def translated_task(
    texts: Mapping[str, Sequence[tuple[str, str]]], pieces: Subwords, longest: int | None = None
) -> Task:
    """The task of pairs of sentences that are there already.

    Args:
      texts: pairs by split, words divided by blanks.
      pieces: what sentences are made of.
      longest: as for `translation_task`.
    """
    kept, splits = {}, {}
    for name, part in texts.items():
        sides = [pieces.numbers([pair[k] for pair in part], s) for k, s in enumerate(_SIDES)]
        pairs = list(zip(*sides, strict=True))
        fits = [
            name != "train" or longest is None or max(map(len, pair)) <= longest for pair in pairs
        ]
        kept[name] = list(itertools.compress(part, fits))
        if not kept[name]:
            raise ValueError(f"no pair of {name} is short enough: raise task.longest")
        splits[name] = padded(list(itertools.compress(pairs, fits)))
    task = pairs_task(splits, pieces.source, len(pieces.target))
    return task._replace(
        # Sentences are hardly ever written word by word as the reference has them.
        metric="loss",
        details=task.details
        | {
            "texts": kept,
            "subwords": pieces,
            "notes": left_out(len(texts["train"]) - len(kept["train"])),
            "keep": {"subwords.json": pieces.content()},
        },
    )


def bare_task(pieces: Subwords, batch: int) -> Task:
    """The task without its corpus: what it takes to restore a trained model and to use it.

    Args:
      pieces: those that the run has kept.
      batch: examples an update.
    """
    return translated_task({"train": [("a", "a")] * batch}, pieces)


_SIDES = ("source", "target")
