"""Byte-pair encoding (Sennrich et al., 2016): words as pieces that training has seen often.

A word begins as its characters, the last of which has a blank behind it: no word holds a blank, so
that pieces side by side are a text again. The commonest pair of neighbours becomes one piece,
again and again. Both are done by the package `tokenizers`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Sequence

from implicit_rnn.experiments.translation.extra import extra

Merge = tuple[str, str]
_END = " "  # of a word


def learn(texts: Iterable[str], merges: int) -> list[Merge]:
    """The pairs of pieces that become one, in the order in which they do.

    There are fewer merges than asked for if no pair is left that is there twice.

    >>> learn(["low low low lower", "lower lot low low"], 3)
    [('l', 'o'), ('lo', 'w '), ('e', 'r ')]

    Args:
      texts: words divided by blanks.
      merges: how many.
    """
    library, texts = extra("tokenizers", "byte pairs need"), list(texts)
    known = alphabet(texts)
    ends = sorted(piece for piece in known if piece.endswith(_END))
    encoding = library.Tokenizer(library.models.BPE(end_of_word_suffix=_END))
    encoding.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    trainer = library.trainers.BpeTrainer(
        # Every character counts, also one that is nowhere but at an end.
        vocab_size=len({piece.strip() for piece in known}) + len(ends) + merges,
        min_frequency=2,
        end_of_word_suffix=_END,
        # Named here they have a fixed order, which decides between pairs that are equally common.
        special_tokens=ends,
        show_progress=False,
    )
    encoding.train_from_iterator(texts, trainer)
    found = json.loads(encoding.to_str())["model"]["merges"]
    return [(first, second) for first, second in found[:merges]]


def alphabet(texts: Iterable[str]) -> set[str]:
    """The pieces that words begin as.

    >>> sorted(alphabet(["to do"]))
    ['d', 'o ', 't']
    """
    words = {word for text in texts for word in text.split()}
    return {piece for word in words for piece in (*word[:-1], word[-1] + _END)}


def splitter(merges: Sequence[Merge], known: Iterable[str]) -> Callable[[str], list[str]]:
    """What splits a word: the earliest merge that fits, again and again.

    >>> split = splitter([("l", "o"), ("lo", "w"), ("s", "t ")], ["e"])
    >>> split("lowest"), split("lozy")
    (['low', 'e', 'st '], ['lo', '', ''])

    Args:
      merges: in their order.
      known: further pieces; a character that is no piece becomes an empty one.
    """
    library = extra("tokenizers", "byte pairs need")
    whole = (first + second for first, second in merges)
    pieces = {"", *known, *itertools.chain.from_iterable(merges), *whole}
    numbers = {piece: number for number, piece in enumerate(sorted(pieces))}
    model = library.models.BPE(numbers, list(merges), end_of_word_suffix=_END, unk_token="")
    return lambda word: [token.value for token in model.tokenize(word)]


def joined(pieces: Iterable[str]) -> str:
    """The text that pieces are, its words divided by one blank.

    >>> joined(["low", "e", "st ", "of ", "a", "ll "])
    'lowest of all'
    """
    return "".join(pieces).strip()
