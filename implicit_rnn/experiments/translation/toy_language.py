"""A tiny language to translate into: words have endings, adjectives follow, verbs come last."""

from __future__ import annotations

import numpy as np

NOUNS = {
    "dog": "kel", "cat": "miv", "bird": "tarn", "horse": "gavol", "child": "pil", "woman": "sedra",
    "man": "odan", "farmer": "gerten", "teacher": "lisk", "river": "vand", "tree": "bor",
    "house": "dom",
}  # fmt: skip
ADJECTIVES = {
    "old": "uth", "young": "nev", "small": "pik", "big": "gron", "red": "rosh", "happy": "fel",
    "tired": "moth", "quiet": "shil",
}  # fmt: skip
VERBS = {
    "sees": "vid", "hears": "aud", "follows": "sek", "finds": "trov", "likes": "am",
    "paints": "pent", "forgets": "oblin", "helps": "jut",
}  # fmt: skip
ADVERBS = {"today": "hod", "slowly": "lent", "often": "oft", "again": "rev"}
# What is before a noun and which ending the noun and its adjective get.
ARTICLES = {"the": "o", "a": "e", "every": "is"}


def sentence(rng: np.random.Generator) -> tuple[str, str]:
    """An English sentence and what it is in the language.

    `the old dog sees a cat today` is `kelo utho hod mivem vida`: subject, adverb, object with `m`,
    verb.
    """
    (subject, who), (thing, whom) = (_phrase(rng, case) for case in ("", "m"))
    verb = str(rng.choice(list(VERBS)))
    adverb = str(rng.choice(list(ADVERBS))) if rng.random() < 0.4 else ""
    said = " ".join([subject, verb, thing, adverb])
    meant = " ".join([who, ADVERBS.get(adverb, ""), whom, VERBS[verb] + "a"])
    return " ".join(said.split()), " ".join(meant.split())


def _phrase(rng: np.random.Generator, case: str) -> tuple[str, str]:
    """Article, now and then an adjective, and noun."""
    article, noun = str(rng.choice(list(ARTICLES))), str(rng.choice(list(NOUNS)))
    ending = ARTICLES[article] + case
    said, meant = [article], [NOUNS[noun] + ending]
    if rng.random() < 0.5:
        adjective = str(rng.choice(list(ADJECTIVES)))
        said.append(adjective)
        meant.append(ADJECTIVES[adjective] + ending)
    return " ".join([*said, noun]), " ".join(meant)
