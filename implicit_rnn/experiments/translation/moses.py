"""Text as corpora of translations have it: lower case, marks apart and escaped as by Moses."""

from __future__ import annotations

import html
import re

from implicit_rnn.experiments.data.lines import STRAIGHT

_ESCAPES = str.maketrans(
    {"&": "&amp;", "|": "&#124;", "<": "&lt;", ">": "&gt;", "'": "&apos;", '"': "&quot;",
     "[": "&#91;", "]": "&#93;"}
)  # fmt: skip
_WORD = r"\w+(?:[-_]\w+)*|[^\w\s]"
_TOKEN = {False: re.compile(_WORD), True: re.compile(rf"(?<=\w)'\w+|{_WORD}")}


def escaped(text: str, *, clitics: bool) -> str:
    """A text as a corpus would have it.

    Args:
      text: as people write.
      clitics: whether an apostrophe goes with the letters behind it, as in English.

    >>> escaped('A kid\\u2019s "toy".', clitics=True)
    'a kid &apos;s &quot; toy &quot; .'
    """
    tokens = _TOKEN[clitics].findall(text.translate(STRAIGHT).lower())
    return " ".join(token.translate(_ESCAPES) for token in tokens)


def readable(text: str) -> str:
    """The text of a corpus with its marks as people write them, still apart.

    >>> readable("&quot; it &apos;s &quot;")
    '" it \\'s "'
    """
    return html.unescape(text)
