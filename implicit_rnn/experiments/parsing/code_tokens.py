"""Tokens of a line of code, and of a line of English about code."""

from __future__ import annotations

import re

from implicit_rnn.experiments.data.parallel_text import Tokens

_TOKEN = re.compile(
    r"""
      [bBrRuU]{0,2}'(?:[^'\\]|\\.)*'      # a string, with its quotes: one token, blanks and all
    | [bBrRuU]{0,2}"(?:[^"\\]|\\.)*"
    | \w+                                 # a word, a name or a number
    | \*\*=? | //=? | <<=? | >>=? | [-+*/%&|^<>=!]=   # operators of more than one character
    | [^\w\s]                             # any other character that is not a blank
    """,
    re.VERBOSE,
)


def code_tokens(line: str) -> Tokens:
    r"""Strings, names, numbers, operators and punctuation; blanks between them are lost.

    A quote without its partner (an apostrophe) is a token by itself. Two lines of code have the
    same tokens if they are the same up to blanks outside of strings.

    >>> code_tokens("  now.replace ( tz = 'a \\' b' )  !=  x")
    ('now', '.', 'replace', '(', 'tz', '=', "'a \\' b'", ')', '!=', 'x')
    >>> code_tokens("don't call self._cull")
    ('don', "'", 't', 'call', 'self', '.', '_cull')
    """
    return tuple(_TOKEN.findall(line))
