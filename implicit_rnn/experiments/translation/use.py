"""Trained translations in use: what beam search finds, its BLEU, and sentences of one's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from implicit_rnn.experiments import runs
from implicit_rnn.experiments.config import Config
from implicit_rnn.experiments.data.pairs import wide
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.experiments.registry import MODELS
from implicit_rnn.experiments.search import Search, note
from implicit_rnn.experiments.train import how, restored
from implicit_rnn.experiments.translation.extra import extra
from implicit_rnn.experiments.translation.moses import escaped, readable
from implicit_rnn.experiments.translation.subwords import Subwords
from implicit_rnn.experiments.translation.task import bare_task, languages
from implicit_rnn.models import Seq2Seq, Transformer
from implicit_rnn.training import files, restore
from implicit_rnn.training import folder as folders

_BATCH = 64
_GROWTH = 1.5  # from one length that sentences are padded to to the next, each a program
_SHORT = 12  # the shortest of them is at most so long
_FEW = 200  # sentences that are padded to one length


class Trained(NamedTuple):
    """A translation with what it has learnt."""

    subwords: Subwords
    find: Callable[..., list[str]]  # as `finder` gives it
    params: Any
    languages: tuple[str, str]  # from which, to which


def load(output: Path, search: Search) -> Trained:
    """A run as it is to be used; its folder is all that is needed.

    Args:
      output: the run's folder, or that of an experiment with a single run.
      search: how.
    """
    folder = runs.only_run(output)
    config = _configuration(folder)
    pieces = Subwords.load(folder / "subwords.json")
    task = bare_task(pieces, config.training.batch)
    options = {key: value for key, value in config.model.items() if key != "name"}
    model = MODELS[config.model["name"]](task, **options)
    found = restore(task, model, **how(config), folder=folder, average=search.average)
    find = finder(model, pieces, search, config)
    return Trained(pieces, find, found.params, languages(config.task["corpus"]))


def translate(trained: Trained, sentences: Sequence[str]) -> list[str]:
    """Sentences in the other language.

    Texts are made as the corpora are, in lower case and with punctuation by itself; what comes back
    is in lower case, too.
    """
    own, other = trained.languages
    texts = [escaped(text, own) for text in sentences]
    sources = trained.subwords.numbers([text for text in texts if text], "source")
    found = iter(trained.find(trained.params, sources))
    return [readable(next(found), other) if text else "" for text in texts]


def finder(
    model: Any, pieces: Subwords, search: Search, config: Config
) -> Callable[[Any, Sequence[np.ndarray]], list[str]]:
    """What translates sentences: `(params, numbers of pieces) -> texts`, in the same order.

    Sentences of about equal length are translated together, so that few programs are compiled.
    """
    assert isinstance(model, Seq2Seq | Transformer)
    settings = config.solver.exact().settings()

    def beam(params: Any, source: jax.Array, length: jax.Array, limit: int) -> tuple:
        found = model.beam(
            params, source, length, limit, search.beam, search.length_penalty, solve=settings
        )
        return found.tokens[:, 0], found.length[:, 0]

    run = jax.jit(beam, static_argnums=3)

    def find(params: Any, sources: Sequence[np.ndarray]) -> list[str]:
        texts: dict[int, str] = {}
        tokens, length = wide(sources)
        for index, time in groups(length):
            read = np.where(index < 0, 0, length[index])
            rows = run(params, tokens[index, :time], read, limit_of(time))
            for number, written, end in zip(index, *map(np.asarray, rows), strict=True):
                if number >= 0:
                    texts[int(number)] = pieces.text(written[:end])
        return [texts[number] for number in range(len(sources))]

    return find


def groups(length: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Sentences to be translated together, by number, and the length that they are padded to.

    A step of a search costs as much as the steps that it may have, so that long sentences, of which
    there are few, go in small batches. -1 fills a batch up.
    """
    ends = [int(length.max(initial=0))]
    while len(length) > _FEW and ends[0] > _SHORT:
        ends.insert(0, int(ends[0] / _GROWTH))
    group = np.searchsorted(ends, length)
    for number, end in enumerate(ends):
        members = np.flatnonzero(group == number)
        size = min(_BATCH, 1 << max(len(members) - 1, 0).bit_length())
        filled = np.concatenate([members, np.full(-len(members) % size, -1)])
        for index in filled.reshape(-1, size):
            yield index, end


def limit_of(time: int) -> int:
    """How many pieces a translation of so many may have."""
    return 3 * time // 2 + 10


def bleu(found: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """BLEU of sacrebleu on words as they are, divided by blanks; and its signature.

    The corpora are tokenised already, and in lower case: so is what is compared.
    """
    sacrebleu = extra("sacrebleu", "BLEU needs")
    metric = sacrebleu.BLEU(tokenize="none", force=True)
    score = metric.corpus_score(list(found), [list(references)]).score
    return float(score), str(metric.get_signature())


def judge(folder: Path, search: Search, split: str | None = None) -> list[dict[str, Any]]:
    """Translates test sets of a run, and notes what came out in its folder.

    Translations go to `translations/`, a sentence a line; a record of each set to `result.json`, if
    the run has finished, in place of one of the same search.

    Args:
      folder: of one run.
      search: how.
      split: which set; by default all but `train` and `valid`.

    Returns:
      The records: split, search, BLEU and its signature, sentences, file.
    """
    config = _configuration(folder)
    with folders.locked(folder):
        parts, state, record = restored(config, folder, search.average)
        texts, pieces = (parts.task.details[key] for key in ("texts", "subwords"))
        names = [name for name in texts if name not in ("train", "valid")]
        if split is not None and split not in texts:
            raise ConfigError(f"no split {split!r}; there are {', '.join(texts)}")
        chosen = {name: texts[name] for name in (names if split is None else [split])}
        # All sets at once: they share what is compiled.
        sentences = [source for part in chosen.values() for source, _ in part]
        find = finder(parts.model, pieces, search, config)
        every = iter(find(parts.usable(state), pieces.numbers(sentences, "source")))
        records = []
        for name, part in chosen.items():
            found = list(itertools.islice(every, len(part)))
            score, signature = bleu(found, [target for _, target in part])
            file = f"translations/{name}-{_stem(search)}.txt"
            files.write_text(folder / file, "".join(f"{text}\n" for text in found))
            records.append(
                {"split": name, **search._asdict(), "bleu": score, "signature": signature}
                | {"sentences": len(found), "update": record["update"], "file": file}
            )
        note(folder / "result.json", "translations", records)
    return records


def translates(folder: Path) -> bool:
    """Whether a run is one of a translation."""
    return (folder / "subwords.json").exists()


def _configuration(folder: Path) -> Config:
    """That of a run, which must be one of a translation."""
    config = runs.configuration(folder)
    if not translates(folder):
        raise folders.FolderError(
            f"{folder} is no translation but {config.task['name']!r}: it has no subwords.json"
        )
    return config


def _stem(search: Search) -> str:
    return "-".join(f"{key}{value:g}" for key, value in search._asdict().items())
