"""Text as corpora of translations have it: lower case, marks apart and escaped as by Moses.

By the package `sacremoses`, which is what such corpora were made with.
"""

from __future__ import annotations

from implicit_rnn.experiments.translation.extra import extra


def escaped(text: str, language: str) -> str:
    """A text as a corpus would have it.

    Args:
      text: as people write.
      language: its code.

    >>> escaped('A kid\\u2019s "toy".', "en")
    'a kid &apos;s &quot; toy . &quot;'
    """
    moses = extra("sacremoses", "sentences of one's own need")
    text = moses.MosesPunctNormalizer(language).normalize(text)
    return moses.MosesTokenizer(language).tokenize(text.lower(), return_str=True)


def readable(text: str, language: str) -> str:
    """The text of a corpus as people write it, but for capitals.

    >>> readable("&quot; it &apos;s &quot; , he says .", "en")
    '"it\\'s", he says.'
    """
    moses = extra("sacremoses", "sentences of one's own need")
    return moses.MosesDetokenizer(language).detokenize(text.split())
