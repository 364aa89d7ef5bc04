"""A trained translation in use: beams, BLEU, averaged checkpoints."""

from __future__ import annotations

import collections
import io
import json
import math
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from implicit_rnn.cli import main
from implicit_rnn.experiments import runs
from implicit_rnn.experiments.train import restored
from implicit_rnn.experiments.translation import use
from implicit_rnn.experiments.translation.moses import escaped
from implicit_rnn.experiments.translation.task import translation_task
from implicit_rnn.training.checkpoint import CheckpointError, Checkpoints
from implicit_rnn.training.tables import dump

CONTENT = {
    "task": {"name": "translation", "train": 60, "valid": 10, "test": 20, "merges": 300},
    "model": {"name": "transformer", "width": 8, "heads": 2, "layers": 1, "hidden": 8},
    "optimiser": {"rate": 0.01},
    "training": {
        "updates": 9, "batch": 20, "buckets": 1, "log_every": 3, "evaluate_every": 3, "keep": 3,
        "evaluate_batch": 20,
    },
    "variants": {"plain": {}, "other": {"training": {"seed": 1}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment with one trained run of two."""
    folder = tmp_path_factory.mktemp("translation")
    (folder / "small.toml").write_text(dump(CONTENT))
    command = ["train", str(folder / "small.toml"), "--output", str(folder / "out")]
    assert main([*command, "--only", "plain", "--no-figures"]) == 0
    return folder / "out"


def test_the_mean_of_checkpoints_is_that_of_their_parameters(run: Path):
    folder = run / "plain"
    config = runs.configuration(folder)
    parts, state, record = restored(config, folder, average=2)
    kept = Checkpoints(folder / "checkpoints")
    assert kept.updates() == [3, 6, 9]
    last, before = (kept.restore(u, jax.eval_shape(parts.init)) for u in (9, 6))
    for mean, a, b in zip(
        *map(jax.tree.leaves, (state.params, last.params, before.params)), strict=True
    ):
        np.testing.assert_allclose(mean, (np.asarray(a) + np.asarray(b)) / 2, atol=1e-7)
    assert record["update"] == 9
    assert state.update == 9
    with pytest.raises(
        CheckpointError, match=r"holds 3 checkpoints, 4 are wanted.*training.keep = 4"
    ):
        restored(config, folder, average=4)


def test_sentences_are_grouped_by_length_each_once():
    length = np.concatenate([np.random.default_rng(0).integers(1, 40, 300), [150, 160, 170]])
    found = list(use.groups(length))
    seen = np.concatenate([index[index >= 0] for index, _ in found])
    np.testing.assert_array_equal(np.sort(seen), np.arange(303))
    for index, time in found:
        inside = length[index[index >= 0]]
        assert inside.max() <= time
        assert time <= 12 or inside.min() > int(time / 1.5)
    assert [len(index) for index, time in found if time == 170] == [4]  # three, and a place
    assert len({(len(index), time) for index, time in found}) <= 8  # programs to compile
    assert [len(index) for index, _ in use.groups(length[:20])] == [32]
    assert list(use.groups(length[:0])) == []


def bleu_by_hand(found, references):
    """Papineni et al. (2002): shares of n-grams, the geometric mean, and a penalty if short."""
    right, total = [0] * 4, [0] * 4
    for text, reference in zip(found, references, strict=True):
        for n in range(4):
            grams, truth = (
                collections.Counter(tuple(t[i : i + n + 1]) for i in range(len(t) - n))
                for t in (text.split(), reference.split())
            )
            right[n] += sum((grams & truth).values())
            total[n] += sum(grams.values())
    sizes = [sum(len(text.split()) for text in texts) for texts in (found, references)]
    penalty = min(1.0, math.exp(1 - sizes[1] / sizes[0]))
    return (
        100
        * penalty
        * math.exp(sum(math.log(a / b) for a, b in zip(right, total, strict=True)) / 4)
    )


def test_bleu_is_that_of_counting_and_names_its_signature():
    sacrebleu = pytest.importorskip("sacrebleu")
    references = ["the old dog sees a cat , today .", "every child likes the red house"]
    found = ["the old dog sees the cat today .", "every child likes the house"]
    score, signature = use.bleu(found, references)
    assert score == pytest.approx(bleu_by_hand(found, references))
    assert score == sacrebleu.corpus_bleu(found, [references], tokenize="none", force=True).score
    assert "tok:none" in signature
    assert f"version:{sacrebleu.__version__}" in signature
    assert use.bleu(references, references)[0] == pytest.approx(100)


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("sacrebleu", lambda: use.bleu(["a"], ["a"])),
        ("tokenizers", lambda: translation_task(train=2, valid=1, test=1)),
        ("sacremoses", lambda: escaped("a", "en")),
    ],
)
def test_what_lacks_a_package_says_what_to_install(package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError, match=rf"the package {package}: pip install '\.\[translation\]'"
    ):
        call()


def test_test_sets_are_translated_judged_and_recorded(run: Path, capsys):
    pytest.importorskip("sacrebleu")
    assert main(["evaluate", str(run), "--average", "3", "--beam", "2"]) == 0
    assert "BLEU test, beam 2, mean of 3" in capsys.readouterr().out
    folder = run / "plain"
    result = json.loads((folder / "result.json").read_text())
    (record,) = result["translations"]
    assert (record["split"], record["beam"], record["average"]) == ("test", 2, 3)
    assert record["length_penalty"] == 0.6
    texts = (folder / record["file"]).read_text().splitlines()
    assert len(texts) == record["sentences"] == 20
    parts, state, _ = restored(runs.configuration(folder), folder, 3)
    references = [target for _, target in parts.task.details["texts"]["test"]]
    assert record["bleu"] == use.bleu(texts, references)[0]
    # A sentence is translated as it is by itself, padded as it was.
    pairs = parts.task.details["pairs"]["test"]
    longest = int(pairs.source_length.max())
    found = parts.model.beam(
        parts.usable(state),
        pairs.source[3:4, :longest],
        pairs.source_length[3:4],
        use.limit_of(longest),
        2,
    )
    tokens = found.tokens[0, 0, : found.length[0, 0]]
    assert parts.task.details["subwords"].text(tokens) == texts[3]
    # The same search again takes the record's place; another stands beside it.
    assert main(["evaluate", str(run), "--average", "3", "--beam", "2"]) == 0
    assert main(["evaluate", str(folder), "--beam", "1", "--split", "valid"]) == 0
    result = json.loads((folder / "result.json").read_text())
    assert [r["split"] for r in result["translations"]] == ["test", "valid"]
    assert main(["record", str(run), "--output", str(run / "record.json")]) == 0
    (row,) = json.loads((run / "record.json").read_text())["rows"]
    assert row["BLEU test, beam 2, mean of 3"] == record["bleu"]
    assert main(["evaluate", str(run), "--beam", "2", "--split", "tset"]) == 1
    assert "no split 'tset'; there are train, valid, test" in capsys.readouterr().err
    assert main(["evaluate", str(run), "--average", "3"]) == 0
    assert "perplexity" not in capsys.readouterr().out


def test_sentences_of_ones_own_are_translated(run: Path, capsys, monkeypatch):
    command, narrow = ["translate", str(run / "plain")], ["--beam", "1"]
    assert main([*command, "The dog sees a cat!\n\nA dog sees the cat!", *narrow]) == 0
    first, blank, _ = capsys.readouterr().out.split("\n")[:3]
    assert blank == ""
    monkeypatch.setattr(sys, "stdin", io.StringIO("the DOG sees a cat !"))
    assert main([*command, *narrow]) == 0
    assert capsys.readouterr().out == first + "\n"
    trained = use.load(run / "plain", use.Search(1, average=2))
    assert use.translate(trained, ["", " "]) == ["", ""]
    assert main([*command, "a", "--file", "b"]) == 1
    assert "not both" in capsys.readouterr().err


def test_what_is_no_translation_is_refused(tmp_path: Path, capsys):
    content = {"task": {"name": "sorting"}, "model": CONTENT["model"]}
    (tmp_path / "config.toml").write_text(dump(content))
    assert main(["translate", str(tmp_path), "a"]) == 1
    assert "is no translation but 'sorting'" in capsys.readouterr().err


@pytest.mark.slow
def test_the_quick_profile_learns_the_tiny_language(root: Path, tmp_path: Path):
    pytest.importorskip("sacrebleu")
    config, output = str(root / "configs" / "translation.toml"), tmp_path / "out"
    assert main(["train", config, "--profile", "quick", "--output", str(output)]) == 0
    assert main(["evaluate", str(output), "--average", "5", "--beam", "4"]) == 0
    rows = json.loads((output / "table.json").read_text())["rows"]
    assert [row["variant"] for row in rows] == ["transformer", "aggregate", "block"]
    assert max(row["BLEU test, beam 4, mean of 5"] for row in rows) > 20
    sizes = [row["parameters"] for row in rows]
    assert max(sizes) < 1.1 * min(sizes)
