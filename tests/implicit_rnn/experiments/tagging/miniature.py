"""A miniature corpus in CoNLL-U: sentences of a small grammar, always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

WORDS = {
    "DT": ["the", "a"],
    "NN": ["dog", "cat", "walker", "talker", "mother"],
    "VBZ": ["sees", "hears", "walks", "talks"],
    "NNP": ["Mary", "John", "Paris"],
    "CD": ["12", "1,000"],
}
RULES = (["NNP", "VBZ", "DT", "NN", "."], ["DT", "NN", "VBZ", "NNP", "."], ["CD", "NN", "."])


def sentences(seed: int, count: int) -> list[list[tuple[str, str]]]:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        tags = RULES[rng.integers(len(RULES))]
        found.append([(str(rng.choice(WORDS.get(tag, [tag]))), tag) for tag in tags])
    return found


def head(place: int) -> str:
    """Every word depends on the second one, but for that one."""
    return "0" if place == 2 else "2"


def conllu(found: list[list[tuple[str, str]]]) -> str:
    blocks = []
    for number, tokens in enumerate(found):
        rows = [f"# sent_id = {number}"]
        for place, (word, tag) in enumerate(tokens, 1):
            rows.append("\t".join([str(place), word, word, tag[:1], tag, "_", head(place), *"___"]))
        blocks.append("\n".join(rows) + "\n\n")
    return "".join(blocks)


def write(folder: Path) -> Path:
    """The three files of UD English EWT, in small."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (name, count) in enumerate({"train": 60, "dev": 12, "test": 12}.items()):
        text = conllu(sentences(seed, count))
        if name == "test":  # a word and a tag that training has not seen
            text += conllu([[("Jumpers", "NNS"), ("walk", "VBZ"), (".", ".")]])
        (folder / f"en_ewt-ud-{name}.conllu").write_text(text)
    return folder
