"""A trained tagger in use, and where it errs."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from implicit_rnn import sequence
from implicit_rnn.cli import main
from implicit_rnn.experiments.plots import confusion
from implicit_rnn.experiments.tagging import Sentence, Words, sentence_source, use, vocabulary
from implicit_rnn.experiments.tagging.errors import by_distance, errors
from implicit_rnn.experiments.tagging.page import write_page
from implicit_rnn.experiments.tagging.words import word_tagger
from implicit_rnn.models import encoder
from implicit_rnn.training.folder import FolderError
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.tagging import miniature
from tests.implicit_rnn.models.checks import begin

CONTENT = {
    "task": {"name": "tagging", "corpus": "ud_ewt"},
    "model": {
        "name": "word_tagger", "encoder": "bigru", "hidden": 4, "word_size": 6, "affix_size": 2,
        "word_dropout": 0.3,
    },
    "optimiser": {"rate": 0.1, "ema": 0.5},
    "training": {
        "updates": 60, "batch": 20, "buckets": 1, "log_every": 20, "evaluate_every": 30,
        "evaluate_batch": 13,
    },
}  # fmt: skip


def trained_in(folder: Path, *settings: str) -> Path:
    """A run whose corpus is gone."""
    corpus = miniature.write(folder / "corpus")
    content = {**CONTENT, "task": {**CONTENT["task"], "path": str(corpus)}}
    (folder / "small.toml").write_text(dump(content))
    command = ["train", str(folder / "small.toml"), "--output", str(folder / "run")]
    assert main([*command, *(part for setting in settings for part in ("--set", setting))]) == 0
    use.load(folder / "run")
    shutil.rmtree(corpus)
    return folder / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_in(tmp_path_factory.mktemp("tagging"))


def test_a_run_tags_words_it_knows_and_words_it_does_not(run: Path, tmp_path: Path, capsys):
    assert main(["tag", str(run), "Mary sees the dog. The Joker walks!"]) == 0
    printed = capsys.readouterr().out
    first, second, _ = (block.splitlines() for block in (printed + "\n").split("\n\n"))
    assert first == ["Mary\tNNP", "sees\tVBZ", "the\tDT", "dog\tNN", ".\t."]
    assert [line.split("\t")[0] for line in second] == ["The", "Joker", "walks", "!"]
    assert main(["tag", str(run), "Mary", "--picture", str(tmp_path / "switch.png")]) == 1
    assert "has no switch" in capsys.readouterr().err
    assert main(["tag", str(run), "Mary", "--picture", str(tmp_path / "switch.gif")]) == 1
    assert "a .png or a .html file" in capsys.readouterr().err


@pytest.mark.slow
def test_an_implicit_run_draws_where_words_look(tmp_path: Path):
    run = trained_in(tmp_path, "model.encoder=igru", "solver.warm=true")
    assert {"residuals.png", "switch.png"} < {path.name for path in (run / "plots").iterdir()}
    picture = tmp_path / "look.png"
    text = "Mary sees the dog. The Joker walks!"
    assert main(["tag", str(run), text, "--picture", str(picture)]) == 0
    for path in (picture, tmp_path / "look-2.png"):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_the_switch_of_every_word_is_shown(tmp_path: Path):
    words = vocabulary([Sentence(("the", "dog", "sees"), ("DT", "NN", "VBZ"))])
    model = word_tagger(
        lambda width: encoder("igru", 4), **words.sizes(), word_size=2, affix_size=1
    )
    params = begin(model)
    found = use.tag(
        use.Trained(words, model, params, {"method": "banded"}), [["the", "dog"], [], ["dog"]]
    )
    assert [sentence.past.shape for sentence in found] == [(2, 4), (0, 4), (1, 4)]
    batch = sentence_source([Sentence(("the", "dog"), ("DT", "NN"))], words).batch(
        (np.array([0]), 2)
    )
    inputs, layer = model.embed(params, batch)[0], params["encoder"][0]
    cell = model.encoder.cells[0]
    states, _ = sequence.implicit(cell, layer, inputs, method="banded")
    shares = sequence.switch(cell, layer, inputs, states)
    np.testing.assert_allclose(found[0].past, shares[:, 0], atol=1e-3)
    picture = use.picture(found[0], tmp_path / "look.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_page_points_each_word_to_the_neighbour_it_listens_to(tmp_path: Path):
    past = np.array([[0.9, 0.7], [0.1, 0.5], [0.5, 0.5]])
    sentence = use.Tagged(
        ("<b>", "R&D", "dog"), ("SYM", "NN", "NN"), np.array([False, True, False]), past
    )
    empty = use.Tagged((), (), np.zeros(0, bool), np.zeros((0, 2)))
    text = write_page([sentence, empty], tmp_path / "made" / "look.html", "A < B").read_text()
    tokens = text.split('<div class="token"')[1:]
    assert "A &lt; B" in text
    assert "&lt;b&gt;: SYM, 80% of the past" in tokens[0]
    assert "R&amp;D: NN, 30% of the past, unknown word" in tokens[1]
    # The longest arrow goes 40 from the middle, at 50; the other in proportion, the other way.
    for token, tip in zip(tokens, (10, 50 + 40 * 0.2 / 0.3, 50), strict=True):
        assert f'd="M50 14 H{tip:.1f} ' in token
    assert [token.count("unknown") for token in tokens] == [0, 2, 0]
    with pytest.raises(FolderError, match="no switch to draw"):
        write_page([sentence._replace(past=None)], tmp_path / "none.html")


def test_a_file_and_standard_input_give_the_same(run: Path, tmp_path: Path, capsys, monkeypatch):
    (tmp_path / "text.txt").write_text("John hears a cat.\n")
    assert main(["tag", str(run), "--file", str(tmp_path / "text.txt")]) == 0
    printed = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("John hears a cat.\n"))
    assert main(["tag", str(run)]) == 0
    assert capsys.readouterr().out == printed
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), "utf-8"))
    assert main(["tag", str(run)]) == 1
    assert "standard input is not UTF-8" in capsys.readouterr().err
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    assert main(["tag", str(run), "--file", str(tmp_path / "bad.txt")]) == 1
    assert "bad.txt is not UTF-8" in capsys.readouterr().err
    assert main(["tag", str(run), "text", "--file", str(tmp_path / "bad.txt")]) == 1
    assert "not both" in capsys.readouterr().err
    assert main(["tag", str(tmp_path), "text"]) == 1
    assert "no run folder" in capsys.readouterr().err


def test_sentences_of_any_length_come_back_in_order(run: Path):
    trained = use.load(run)
    tokens = [["12", "dogs"], [], ["Mary", "sees", "a", "talker", "."], ["Paris"]]
    found = use.tag(trained, tokens)
    assert [list(sentence.words) for sentence in found] == tokens
    assert [len(sentence.tags) for sentence in found] == [2, 0, 5, 1]
    np.testing.assert_array_equal(found[0].unknown, [False, True])
    assert use.tag(trained, []) == []
    # Neighbours in the batch change nothing.
    assert use.tag(trained, tokens[2:3])[0].tags == found[2].tags


def test_the_figures_of_a_run_tell_its_errors(run: Path):
    assert {path.name for path in (run / "plots").iterdir()} == {
        "learning_updates.png", "learning_seconds.png", "errors.json", "confusion.png",
    }  # fmt: skip
    found = json.loads((run / "plots" / "errors.json").read_text())
    result = json.loads((run / "result.json").read_text())
    assert found["accuracy"] == pytest.approx(1 - result["test"]["error"], abs=1e-6)
    assert 1 - found["unknown"]["accuracy"] == pytest.approx(result["test"]["unknown"], abs=1e-6)
    assert found["unseen"] == {"test": {"NNS": 1}}
    assert found["unseen tags"] == 1
    assert sum(group["words"] for group in found["by distance"]) == found["words"]


def test_errors_by_hand():
    batch = Words(
        words=np.array([[1, 0, 2, 9], [0, 9, 9, 9], [9, 9, 9, 9]]),
        affixes=np.zeros((3, 4, 0)),
        flags=np.zeros((3, 4, 0)),
        labels=np.array([[0, 1, 1, 9], [-1, 9, 9, 9], [9, 9, 9, 9]]),
        length=np.array([3, 1, 0]),
    )
    long = batch._replace(
        words=np.ones((1, 50)), labels=np.zeros((1, 50), int), length=np.array([45])
    )
    given = np.array([[0, 0, 1, 7], [1, 7, 7, 7], [7, 7, 7, 7]])
    found = errors(["A", "B"], [(batch, given), (long, np.zeros((1, 50), int))])
    np.testing.assert_array_equal(found.confusion, [[46, 0], [1, 1], [0, 1]])
    assert found.known == (47, 47)
    assert found.unknown == (2, 0)
    np.testing.assert_array_equal(found.lengths[[0, -1]], [[2, 4, 2], [1, 45, 45]])
    assert not np.any(found.lengths[1:-1])
    assert found.worst() == [("B", "A", 1), ("(unseen)", "B", 1)]
    content = found.content()
    assert content["accuracy"] == pytest.approx(47 / 49)
    assert content["by length"][1] == {
        "from": 6, "to": 10, "sentences": 0, "words": 0, "accuracy": None,
    }  # fmt: skip
    assert content["by length"][-1]["to"] is None
    json.dumps(content)


def test_the_picture_of_many_labels_shows_the_worst(tmp_path: Path):
    counts = np.random.default_rng(0).integers(0, 9, (41, 40))
    path = confusion(counts, [f"T{n}" for n in range(40)], tmp_path / "c.png", "Errors")
    assert path.read_bytes().startswith(b"\x89PNG")
    confusion(np.eye(2), ["A", "B"], tmp_path / "none.png", "No errors")


def test_errors_by_the_distance_of_heads():
    batch = Words(None, None, None, np.array([[0, 1, 1, 9], [1, 0, 9, 9], [9] * 4]), None)
    given = np.array([[0, 0, 1, 7], [1, 0, 7, 7], [7] * 4])
    distances = [(2, 9, 0), (), (1, 0)]
    rows = by_distance(distances, [(np.array([0, 2, -1]), batch, given)])
    assert [(row["from"], row["to"], row["words"], row["accuracy"]) for row in rows] == [
        (0, 0, 2, 1.0), (1, 1, 1, 1.0), (2, 3, 1, 1.0), (4, 7, 0, None), (8, None, 1, 0.0),
    ]  # fmt: skip
    assert by_distance([()], [(np.array([0]), batch, given)]) == []
