"""Text as the treebank's tokens: words, clitics and punctuation apart.

After the conventions of the Penn Treebank: `don't` is `do n't`, `dog's` is `dog 's`, `$5.` is
`$ 5 .`; `U.S.`, `Mr.`, `1,000` and `well-known` stay whole. Those of English UD are the same but
for compounds (`without_hyphens`), and for quotes and brackets (`treebank_brackets`).
"""

from __future__ import annotations

import re

from implicit_rnn.experiments.data.lines import STRAIGHT
from implicit_rnn.experiments.tagging.corpora import BRACKETS

_CLITIC = re.compile(r"(.+?)(n't|'(?:s|m|d|re|ve|ll))$", re.IGNORECASE)
_PAIRS = {
    "cannot": 3, "gonna": 3, "wanna": 3, "gotta": 3, "gimme": 3, "lemme": 3, "dunno": 2,
}  # fmt: skip
_OPENING = re.compile(r"^(``|\.\.\.|--|'(?=\w{2})|[\"(\[{<$#\u00a3\u20ac*])")
_CLOSING = re.compile(r"(''|\.\.\.|--|[\"'),\]}>;:!?%*])$")
_INSIDE = re.compile(r"(\.\.\.|--|\u2014|[\"()\[\]{}]|[,;:](?!\d)|[!?]+(?=\w))")
_COMPOUND = re.compile(r"(?<=[^\W_])([-/])(?=[^\W\d_])")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+$")
_WEB = re.compile(r"://|@|^www\.|\.(?:com|org|net|edu|gov)\b", re.IGNORECASE)
_ABBREVIATIONS = (
    "mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "inc", "corp", "co", "ltd", "bros",
    "gen", "gov", "sen", "rep", "lt", "col", "capt", "rev", "hon", "vs", "etc", "dept",
    "jan", "feb", "mar", "apr", "jun", "jul", "aug", "sep", "sept", "oct", "nov", "dec",
    "mon", "tue", "wed", "thu", "fri", "ave", "blvd", "rd", "ph.d",
)  # fmt: skip
_END = (".", "!", "?")
_AFTER_END = ('"', "'", ")", "]")  # and what may follow it in its sentence
_BEGIN = ('"', "'", "(", "[", "`")  # what a sentence may begin with, beside a capital


def sentences(text: str) -> list[list[str]]:
    """The tokens of a text, sentence by sentence; a line break always ends one.

    >>> sentences("Mr. Li doesn't know. (Who does?)")
    [['Mr.', 'Li', 'does', "n't", 'know', '.'], ['(', 'Who', 'does', '?', ')']]
    """
    found: list[list[str]] = []
    for line in text.translate(STRAIGHT).splitlines():
        chunks, current = line.split(), []
        for number, chunk in enumerate(chunks):
            following = chunks[number + 1] if number + 1 < len(chunks) else ""
            current += _tokens(chunk, following)
            ended = [token for token in current[-3:] if token not in _AFTER_END][-1:]
            if ended and ended[0] in _END and _begins(following):
                found.append(current)
                current = []
        if current:
            found.append(current)
    return found


def treebank_brackets(tokens: list[str]) -> list[str]:
    """Quotes and brackets as the Penn Treebank writes them: `` and '', -LRB- and -RRB-."""
    found, inside = [], False
    for token in tokens:
        if token == '"':
            token, inside = "''" if inside else "``", not inside
        found.append(BRACKETS.get(token, token))
    return found


def without_hyphens(tokens: list[str]) -> list[str]:
    """Compounds in parts, as newer treebanks have them: `self - driving`, `and / or`."""
    found: list[str] = []
    for token in tokens:
        found += [token] if _WEB.search(token) else [p for p in _COMPOUND.split(token) if p]
    return found


def _tokens(chunk: str, following: str) -> list[str]:
    """The tokens of a run of characters without spaces."""
    front: list[str] = []
    back: list[str] = []
    while (match := _OPENING.match(chunk)) and len(chunk) > len(match[0]):
        front.append(match[0])
        chunk = chunk[match.end() :]
    while len(chunk) > 1:
        if _CLITIC.match(chunk):
            break
        match = _CLOSING.search(chunk)
        cut = match[0] if match else "." if _ended(chunk, following if not back else "") else ""
        if not cut or cut == chunk:
            break
        back.insert(0, cut)
        chunk = chunk.removesuffix(cut)
    parts = [chunk] if _WEB.search(chunk) else [p for p in _INSIDE.split(chunk) if p]
    return front + [token for part in parts for token in _clitics(part)] + back


def _ended(chunk: str, following: str) -> bool:
    """Whether a full stop at the end of a chunk is a sentence's and not the word's own."""
    if not chunk.endswith(".") or chunk.endswith(".."):
        return False
    if following and not _begins(following):
        return False
    if not following:
        return not _INITIALS.match(chunk) or len(chunk) == 2
    return not _INITIALS.match(chunk) and chunk[:-1].lower() not in _ABBREVIATIONS


def _begins(chunk: str) -> bool:
    return chunk[:1].isupper() or chunk.startswith(_BEGIN)


def _clitics(word: str) -> list[str]:
    """`don't` as `do n't`, `cannot` as `can not`."""
    if word.lower() in _PAIRS:
        cut = _PAIRS[word.lower()]
        return [word[:cut], word[cut:]]
    match = _CLITIC.match(word)
    return [*_clitics(match[1]), match[2]] if match else [word]
