"""Words with tags: corpora, features, the task, and a tokeniser for text that has none."""

from implicit_rnn.experiments.tagging.corpora import Corpus, Sentence, columns, conllu, sample
from implicit_rnn.experiments.tagging.features import (
    FEATURES,
    FLAGS,
    Vocabulary,
    affixes,
    flags,
    vocabulary,
)
from implicit_rnn.experiments.tagging.task import (
    UNSEEN,
    Words,
    bare_task,
    read_splits,
    sentence_source,
    tagging_task,
    words_task,
)
from implicit_rnn.experiments.tagging.tokenise import sentences, treebank_brackets, without_hyphens
from implicit_rnn.experiments.tagging.vectors import read_vectors

__all__ = [
    "FEATURES",
    "FLAGS",
    "UNSEEN",
    "Corpus",
    "Sentence",
    "Vocabulary",
    "Words",
    "affixes",
    "bare_task",
    "columns",
    "conllu",
    "flags",
    "read_splits",
    "read_vectors",
    "sample",
    "sentence_source",
    "sentences",
    "tagging_task",
    "treebank_brackets",
    "vocabulary",
    "without_hyphens",
    "words_task",
]
