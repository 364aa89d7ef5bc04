"""Part-of-speech tagging: corpora, their splits, and batches of sentences as numbers."""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from implicit_rnn.experiments import data
from implicit_rnn.experiments.data.lines import CorpusError, located
from implicit_rnn.experiments.tagging import corpora, treebank
from implicit_rnn.experiments.tagging.corpora import Corpus, Sentence
from implicit_rnn.experiments.tagging.features import Vocabulary, vocabulary
from implicit_rnn.experiments.tagging.vectors import read_vectors
from implicit_rnn.experiments.task import Task
from implicit_rnn.training.sources import Source, bucketed, evaluated_alike

UNSEEN = -1  # the label of a tag that training has not seen: whatever is predicted is wrong
SAMPLE = {"train": (1, 149), "valid": (150, 174), "test": (175, 199)}  # documents
SECTIONS = {"train": (0, 18), "valid": (19, 21), "test": (22, 24)}


class Words(NamedTuple):
    """A batch of sentences; what is past a length is zero."""

    words: np.ndarray  # int32 [batch, time], 0 is the unknown word
    affixes: np.ndarray  # int32 [batch, time, kinds], numbers into one table, 0 is none
    flags: np.ndarray  # bool [batch, time, flags]
    labels: np.ndarray  # int32 [batch, time], UNSEEN for a tag that is not in the vocabulary
    length: np.ndarray  # int32 [batch]


def tagging_task(
    *,
    corpus: Literal["ud_ewt", "ptb_sample", "conll2000", "wsj"] = "ud_ewt",
    tags: Literal["xpos", "upos", "chunk"] = "xpos",
    features: Literal["words", "lower", "affixes", "spelling"] = "spelling",
    path: str | None = None,
    most_words: int = 0,
    vectors: str | None = None,
) -> Task:
    """A tag for every word of a sentence (section 3.2 of the 2017 paper).

    Args:
      corpus: `"ud_ewt"`, Universal Dependencies English EWT with its own splits; `"ptb_sample"`,
        the public part of the Penn Treebank, split by document; `"conll2000"`, whose tags (xpos)
        are a program's and not gold, the last tenth of its training set validates; `"wsj"`, the
        whole Wall Street Journal, sections 0-18, 19-21 and 22-24, for those who hold it.
      tags: those of the treebank, universal ones (`"ud_ewt"`), or chunks (`"conll2000"`).
      features: what the network sees of a word, see `features.py`.
      path: the folder with the corpus, in place of the data set's own; `"wsj"` needs one.
      most_words: the vocabulary keeps so many words, the commonest; 0: all. The paper has 39,000.
      vectors: a text file of word vectors to begin with (GloVe's or word2vec's format).
    """
    splits, skipped = read_splits(corpus, tags, path)
    words = vocabulary(splits["train"], features, most=most_words)
    given = read_vectors(Path(vectors), words.words) if vectors else None
    task = words_task(words, splits, skipped, given)
    if corpus == "conll2000" and tags == "xpos":
        task.details["notes"].append("these tags are a program's: do not report them as gold")
    return task


def read_splits(
    corpus: str, tags: str, path: str | None = None
) -> tuple[dict[str, list[Sentence]], dict[str, int]]:
    """The sentences of a corpus by split, and what was left out of them."""
    fitting = {"ud_ewt": ("xpos", "upos"), "conll2000": ("xpos", "chunk")}.get(corpus, ("xpos",))
    if tags not in fitting:
        raise CorpusError(f"{corpus} has no {tags} tags; choose from {', '.join(fitting)}")
    folder = Path(path) if path else None
    found: dict[str, Corpus]
    if corpus == "ud_ewt":
        parts = {"train": "train", "valid": "dev", "test": "test"}
        found = {
            name: corpora.conllu(
                located("ud_english_ewt", f"en_ewt-ud-{part}.conllu", folder), tag=tags
            )
            for name, part in parts.items()
        }
    elif corpus == "conll2000":
        column = 1 if tags == "xpos" else 2
        train, test = (
            corpora.columns(located("conll2000", f"{part}.txt", folder), count=3, tag=column)
            for part in ("train", "test")
        )
        # Documents are not marked; a piece of the end shares at most one with the rest.
        first = len(train.sentences) - len(train.sentences) // 10
        valid = Corpus(train.sentences[first:], collections.Counter())
        found = {"train": train._replace(sentences=train.sentences[:first])}
        found |= {"valid": valid, "test": test}
    elif corpus == "ptb_sample":
        if folder:
            whole = treebank.read(treebank.documents(folder))
        else:
            whole = corpora.sample(data.sound("ptb_sample", "wsj_sample_tagged.tsv"))
        found = _by_document(whole, SAMPLE)
    else:
        if not folder:
            raise CorpusError(
                'task.path is missing: the folder of the licensed treebank, for corpus = "wsj"'
            )
        paths = treebank.documents(folder)
        present = {number // 100 for number in paths}
        missing = sorted(set(range(25)) - present)
        if missing:
            raise CorpusError(
                f"{folder}: sections {', '.join(map(str, missing))} of 0 to 24 are missing"
            )
        ranges = {name: (100 * low, 100 * high + 99) for name, (low, high) in SECTIONS.items()}
        found = _by_document(treebank.read(paths), ranges)
    skipped: collections.Counter[str] = collections.Counter()
    for part in found.values():
        skipped += part.skipped
    return {name: part.sentences for name, part in found.items()}, dict(skipped)


def words_task(
    words: Vocabulary,
    splits: Mapping[str, Sequence[Sentence]],
    skipped: Mapping[str, int] | None = None,
    vectors: tuple[np.ndarray, np.ndarray] | None = None,
) -> Task:
    """The task of sentences that are there already.

    Args:
      words: the vocabulary of the training set.
      splits: sentences by split.
      skipped: what a reader left out.
      vectors: rows of the table of words, and what they begin with.
    """
    unseen = {
        name: dict(
            collections.Counter(tag for s in part for tag in s.tags if tag not in words.tags)
        )
        for name, part in splits.items()
    }
    return Task(
        "words",
        words.sizes(),
        evaluated_alike({name: sentence_source(part, words) for name, part in splits.items()}),
        "error",
        {
            "vocabulary": words,
            "sentences": splits,
            "vectors": vectors,
            "skipped": dict(skipped or {}),
            "unseen": {k: v for k, v in unseen.items() if v},
            "notes": _notes(words, skipped or {}, unseen, vectors),
            # What a run folder must hold for the run to be used without the corpus.
            "keep": {"vocabulary.json": words.content()},
        },
    )


def _notes(
    words: Vocabulary,
    skipped: Mapping[str, int],
    unseen: Mapping[str, Mapping[str, int]],
    vectors: tuple[np.ndarray, np.ndarray] | None,
) -> list[str]:
    """What a person who trains must know of the corpus, a line each."""
    notes = []
    if skipped:
        notes.append("left out: " + ", ".join(f"{n:,} {what}" for what, n in skipped.items()))
    for name, tags in unseen.items():
        if tags:
            listed = ", ".join(f"{n} x {tag}" for tag, n in tags.items())
            notes.append(f"tags of {name} that training has not seen, all errors: {listed}")
    if vectors is not None:
        notes.append(f"{len(vectors[0]):,} of {len(words.words):,} words begin with given vectors")
    return notes


def bare_task(words: Vocabulary, batch: int) -> Task:
    """The task without its corpus: what it takes to restore a trained model and to use it.

    Args:
      words: the vocabulary that the run has kept.
      batch: examples an update.
    """
    found = words_task(words, {"train": [Sentence(("word",), (words.tags[0],))] * batch})
    # Where solves start warm, a checkpoint has room for the states of the real training set.
    splits = {name: part._replace(shape=words.shape) for name, part in found.splits.items()}
    return found._replace(splits=splits)


def sentence_source(sentences: Sequence[Sentence], words: Vocabulary) -> Source:
    """Batches of sentences of about equal length."""
    length = np.array([len(sentence.words) for sentence in sentences], np.int32)
    starts = np.concatenate([[0], np.cumsum(length)])
    label = {tag: number for number, tag in enumerate(words.tags)}
    labels = [label.get(tag, UNSEEN) for sentence in sentences for tag in sentence.tags]
    columns = [
        *words.number([sentence.words for sentence in sentences]),
        np.array(labels, np.int32),
    ]
    columns = [np.concatenate([column, np.zeros_like(column[:1])]) for column in columns]

    def take(index: np.ndarray, time: int) -> Words:
        count = np.where(index < 0, 0, length[index]).astype(np.int32)
        inside = np.arange(time) < count[:, None]
        # Past the length, the entry that was added behind the last word.
        place = np.where(inside, starts[index][:, None] + np.arange(time), -1)
        number, affix, flag, right = (
            np.where(inside.reshape(*inside.shape, *(1,) * (column.ndim - 1)), column[place], 0)
            for column in columns
        )
        return Words(
            number.astype(np.int32),
            affix.astype(np.int32),
            flag.astype(bool),
            right.astype(np.int32),
            count,
        )

    return bucketed(length, take, int(length.max(initial=0)))


def _by_document(whole: Corpus, ranges: Mapping[str, tuple[int, int]]) -> dict[str, Corpus]:
    """Splits by the number in a document's name, `wsj_0001`."""
    found = {name: Corpus([], collections.Counter()) for name in ranges}
    found["train"] = found["train"]._replace(skipped=whole.skipped)
    for sentence in whole.sentences:
        number = int(sentence.document.removeprefix("wsj_"))
        for name, (low, high) in ranges.items():
            if low <= number <= high:
                found[name].sentences.append(sentence)
    empty = [name for name, part in found.items() if not part.sentences]
    if empty:
        low, high = ranges[empty[0]]
        raise CorpusError(
            f"no sentence for {empty[0]}: no document of wsj_{low:04d} to wsj_{high:04d}"
        )
    return found
