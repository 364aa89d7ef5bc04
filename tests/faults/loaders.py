"""Damaged files for every reader: `python -m tests.faults.loaders --cases 500`.

A reader gives what it read, or an error that the command ends with in a sentence; in bounded time,
and in memory that depends on what a file holds and not on what it says that it holds.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import random
import signal
import sys
import tempfile
import traceback
import tracemalloc
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from implicit_rnn.cli import sentence
from implicit_rnn.experiments import config, runs
from implicit_rnn.experiments.data import mnist, parallel_text
from implicit_rnn.experiments.data.lines import lines
from implicit_rnn.experiments.graph import task as graph
from implicit_rnn.experiments.logic import task as logic
from implicit_rnn.experiments.music import task as music
from implicit_rnn.experiments.pixels import cifar10
from implicit_rnn.experiments.tagging import corpora, features, treebank, vectors
from implicit_rnn.experiments.translation import subwords
from implicit_rnn.training.checkpoint import Checkpoints
from implicit_rnn.training.files import write_sealed
from implicit_rnn.training.folder import Records
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import CONTENT

SECONDS, BYTES = 20, 100 * 2**20  # that reading a file of a few kB may take
READ, REFUSED, FAILED = "read", "refused", "FAILED"


class Format(NamedTuple):
    """A kind of file: its name, a whole one, and who reads it."""

    name: str
    content: bytes
    read: Callable[[Path], object]


def text(*rows: str) -> bytes:
    return ("\n".join(rows) + "\n").encode()


def idx(*shape: int) -> bytes:
    head = [2048 + len(shape), *shape]
    return b"".join(n.to_bytes(4, "big") for n in head) + bytes(range(200)) * (
        int(np.prod(shape)) // 200 + 1
    )


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)
    return out.getvalue()


def images(count: int) -> bytes:
    return idx(count, 28, 28)[: 16 + count * 784]


CITATIONS = npz(
    x_data=np.ones(6),
    x_indices=np.array([0, 1, 2, 3, 0, 1]),
    x_indptr=np.arange(7),
    x_shape=np.array([6, 4]),
    edges=np.array([[0, 1], [2, 3]]),
    labels=np.arange(6),
    idx_train=np.array([0, 1]),
    idx_val=np.array([2]),
    idx_test=np.array([3, 4]),
)
ROLLS = {name: np.zeros((5, 88), np.uint8) for name in music.SPLITS}
MUSIC = npz(**ROLLS, **{f"{name}_lengths": np.array([2, 3]) for name in music.SPLITS})
CIFAR = npz(x_train_enc=np.ones((3, 2, 32, 32), np.uint8), y_train=np.array([1, 9], np.uint8))
CONLLU = text(
    "# newdoc id = a",
    "1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_",
    "2-3\tdogs\t_\t_\t_\t_\t_\t_\t_\t_",
    "2\tdog\tdog\tNOUN\tNN\t_\t0\troot\t_\t_",
    "3\ts\ts\tPART\tPOS\t_\t2\tcase\t_\t_",
    "",
)
VOCABULARY = features.vocabulary([corpora.Sentence(("A", "dog", "1990s"), ("DT", "NN", "CD"))])
PIECES = subwords.subwords([("the dog", "der hund"), ("the cat", "die katze")], 5)


def sealed(content: dict) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return write_sealed(Path(folder) / "file", content).read_bytes()


def experiment(path: Path) -> object:
    path.rename(path.with_name(runs.MARK))
    return runs.experiment(path.parent)


def metrics(path: Path) -> object:
    found = Records(path)
    found.rewind(10, None, lambda words: None)
    return found.read()


def seal(path: Path) -> object:
    path.rename(path.with_name("000007.json"))
    (path.parent / "000007").mkdir(exist_ok=True)
    found = Checkpoints(path.parent)
    return found.best(), found.restore_best({}, lambda words: None)


FORMATS = [
    Format("idx", images(2), lambda path: mnist.read_idx(path, 3)),
    Format("idx.gz", gzip.compress(images(2)), lambda path: mnist.read_idx(path, 3)),
    Format("citations.npz", CITATIONS, lambda path: graph.read_citations(path, 7)),
    Format("music.npz", MUSIC, music.read_music),
    Format("cifar.npz", CIFAR, lambda path: cifar10.load("train", path)),
    Format("x.conllu", CONLLU, corpora.conllu),
    Format("x.conllu.gz", gzip.compress(CONLLU), corpora.conllu),
    Format("columns.txt", text("A DT B-NP", "dog NN I-NP", ""),
           lambda path: corpora.columns(path, count=3)),
    Format("sample.tsv", text("wsj_0001\tA\tDT", "wsj_0001\tdog\tNN|VB", "", "wsj_0002\t*\t-NONE-"),
           corpora.sample),
    Format("wsj_0001.mrg", text("( (S (NP (DT A) (NN dog)) (VP (VBZ barks)) (. .)) )"),
           lambda path: list(treebank.bracketed(path))),
    Format("wsj_0001.pos", text("[ A/DT dog/NN ]", "barks/VBZ ./.", "=====", "b/NN"),
           lambda path: list(treebank.tagged(path))),
    Format("vectors.txt", text("2 3", "dog 1 2.5 -3e2", "cat 0 0 1"),
           lambda path: vectors.read_vectors(path, ["dog", "cat"])),
    Format("train2.tsv", text("<\t( a ( and b ) )\t( c ( or ( not d ) ) )", "#\t( a ( or b ) )\t"
                              "( ( not a ) ( and b ) )"), lambda path: logic.read(path, 2)),
    Format("pairs.tsv", text("what is x\tx ( )", "a b\tc"), parallel_text.columns),
    Format("aligned.en", text("a b", "c d"), lambda path: parallel_text.aligned(path, path)),
    Format("input.txt", text("First Citizen:", "Speak."), lambda path: list(lines(path))),
    Format("vocabulary.json", json.dumps(VOCABULARY.content()).encode(), features.Vocabulary.load),
    Format("subwords.json", json.dumps(PIECES.content()).encode(), subwords.Subwords.load),
    Format("experiment.json", sealed({"title": "t", "runs": {"a": {}}, "paper": []}), experiment),
    Format("metrics.jsonl", text('{"update": 5, "loss": 0.5}', '{"update": 10, "loss": null}'),
           metrics),
    Format("seal.json", json.dumps({"record": {"update": 7, "score": 0.5, "files": {}}, "sum": ""})
           .encode(), seal),
    Format("small.toml", dump(CONTENT).encode(), config.load),
]  # fmt: skip

ODD = [
    b"", b"\x00", b"\xff", b"\n", b"\r", b"\t", b" ", b"\xc2\xb2", b"-1", b"1e999", b"nan",
    b"999999999999", b"\xe2\x80\xa8", b"[", b"(" * 2000, b"{}", b'"',
    b"\\u0000", b"\xff\xff\xff\xff", b"\x7f" * 8,
]  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A file with one to four places changed, cut, doubled or filled with something odd."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        first = rng.randrange(len(found) + 1)
        last = min(len(found), first + rng.choice([0, 1, 1, 2, 8, 40]))
        how = rng.choice(["flip", "odd", "cut", "drop", "double", "swap"])
        if how == "flip" and first < len(found):
            found[first] ^= 1 << rng.randrange(8)
        elif how == "odd":
            found[first:last] = rng.choice(ODD)
        elif how == "cut":
            del found[rng.choice([first, len(found) - 1, len(found)]) :]
        elif how == "drop":
            del found[first:last]
        elif how == "double":
            found[first:first] = found[first:last] * rng.choice([1, 2, 100])
        else:
            found[first:last] = found[first:last][::-1]
    return bytes(found)


def damaged(kind: Format, rng: random.Random) -> bytes:
    """A whole file with damage outside of its packing, or inside of it: what it says of itself."""
    inside = rng.random() < 0.7
    if kind.name.endswith(".gz") and inside:
        content = mutated(gzip.decompress(kind.content), rng)
        return gzip.compress(content + rng.choice([b"", b"", bytes(2**24)]))
    if kind.name.endswith(".npz") and inside:
        out = io.BytesIO()
        with (
            zipfile.ZipFile(io.BytesIO(kind.content)) as old,
            zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            names = old.namelist()
            chosen = rng.choice(names)
            for name in names:
                whole = old.read(name)
                new.writestr(name, declared(whole, rng) if name == chosen else whole)
        return out.getvalue()
    return mutated(kind.content, rng)


def declared(whole: bytes, rng: random.Random) -> bytes:
    """An array in numpy's format that says something else of itself, or is damaged."""
    head, body = whole[:128], whole[128:]
    old = head[10:].decode("latin-1")
    shape = old[old.index("(") : old.index(")") + 1]
    shapes = ["(1000000000000,)", "(-1,)", "(2, 2)", "()", "(1e3,)", "(4000000000, 4000000000)",
              "(0,)", "(True,)"]  # fmt: skip
    kinds = ["|O", "<f2", "<c16", "|S1000000000", "<M8[ns]", ">u8", "|b1", "<U9", "bad"]
    how = rng.choice(["shape", "kind", "numbers", "mutated"])
    if how == "shape":
        text_ = old.replace(shape, rng.choice(shapes))
    elif how == "kind":
        first = old.index("'descr': '") + len("'descr': '")
        text_ = old[:first] + rng.choice(kinds) + old[old.index("'", first) :]
    elif how == "numbers":
        size = rng.choice([8, 1, 4])
        body = b"".join(
            rng.choice([b"\xff" * size, b"\x7f" * size, b"\x00" * size])
            for _ in range(len(body) // size)
        )
        return head + body
    else:
        return mutated(whole, rng)
    encoded = text_.rstrip().encode("latin-1").ljust(118 if len(text_.rstrip()) < 118 else 246)
    return head[:8] + len(encoded).to_bytes(2, "little") + encoded[:-1] + b"\n" + body


def one(kind: Format, seed: int, number: int) -> tuple[str, str]:
    """A verdict on a case, with what went wrong."""
    rng = random.Random(f"{kind.name} {seed} {number}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / kind.name
        path.write_bytes(damaged(kind, rng))
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        try:
            with in_time(), warnings.catch_warnings():
                warnings.simplefilter("error")
                kind.read(path)
            verdict, words = READ, ""
        except Exception as error:
            verdict, words = REFUSED, sentence(error) or ""
            if not words or isinstance(error, TimeoutError):
                verdict, words = FAILED, traceback.format_exc()[-1500:]
        peak = tracemalloc.get_traced_memory()[1] - before
    return (FAILED, f"{peak:,} bytes of memory") if peak > BYTES else (verdict, words)


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raises `TimeoutError` after `SECONDS`."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"longer than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def campaign(cases: int, seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """Counts of verdicts by format, and what failed."""
    counts, failed = {}, []
    tracemalloc.start()
    try:
        for kind in FORMATS:
            found = [one(kind, seed, number) for number in range(cases)]
            counts[kind.name] = Counter(verdict for verdict, _ in found)
            failed += [
                f"{kind.name} {number}: {words}"
                for number, (verdict, words) in enumerate(found)
                if verdict == FAILED
            ]
    finally:
        tracemalloc.stop()
    return counts, failed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.loaders", description=__doc__)
    parser.add_argument("--cases", type=int, default=500, help="of each format")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    counts, failed = campaign(options.cases, options.seed)
    print("| format | read | refused | failed |\n| --- | --- | --- | --- |")
    for name, own in counts.items():
        print(f"| {name} | {own[READ]} | {own[REFUSED]} | {own[FAILED]} |")
    print("\n".join(failed[:20]))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
