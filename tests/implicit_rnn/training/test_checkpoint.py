"""Checkpoints come back bit for bit, and a damaged one is noticed."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from implicit_rnn.training.checkpoint import CheckpointError, Checkpoints


def state(number: int) -> dict:
    return {
        "weights": jax.random.normal(jax.random.key(number), (3, 4)),
        "count": jnp.int32(number),
        "none": None,
        "pair": (jnp.zeros(2), [jnp.float32(0.1) * number]),
    }


def same(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)
        assert x.dtype == y.dtype


def test_what_is_saved_comes_back_and_only_the_best_and_the_last_are_kept(tmp_path: Path):
    found = Checkpoints(tmp_path / "c", keep=2)
    for update, score in ((1, 0.5), (2, 0.1), (3, 0.4), (4, 0.3), (5, 0.2)):
        found.save(update, state(update), {"score": score, "note": "x"})
    found.close()
    assert found.updates() == [2, 4, 5]
    assert sorted(p.name for p in (tmp_path / "c").iterdir() if p.is_dir()) == [
        "000002", "000004", "000005",
    ]  # fmt: skip
    assert found.best() == 2
    same(found.restore(2, state(0)), state(2))
    last, record = found.restore_last(state(0), print)
    same(last, state(5))
    assert (record["update"], record["note"]) == (5, "x")


def test_a_state_may_be_donated_while_it_is_written(tmp_path: Path):
    found, step = Checkpoints(tmp_path / "c"), jax.jit(lambda x: x + 1, donate_argnums=0)
    value = {"x": jnp.arange(1e6)}
    for update in (1, 2):
        found.save(update, value, {"score": 0.0})
        value = {"x": step(value["x"])}
    assert found.updates() == [1]  # the second has no seal before somebody asks
    found.close()
    for update in (1, 2):
        same(found.restore(update, value), {"x": jnp.arange(1e6) + update - 1})


def test_what_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch):
    found = Checkpoints(tmp_path / "c")
    found.save(1, state(1), {})
    found.save(2, {"x": jnp.zeros(3)}, {})
    monkeypatch.setattr("implicit_rnn.training.checkpoint._checksums", None)
    with pytest.raises(CheckpointError, match="checkpoint 000002 cannot be written: 'NoneType'"):
        found.settle(wait=True)
    assert found.updates() == [1]
    assert [path.name for path in (tmp_path / "c").glob("*2*")] == []


def test_a_folder_without_a_checkpoint_is_a_fresh_start(tmp_path: Path):
    assert Checkpoints(tmp_path / "c").restore_last(state(0), print) is None


def largest(folder: Path) -> Path:
    return max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "a bit flipped": lambda folder: flip(largest(folder)),
    "a file cut short": lambda folder: largest(folder).write_bytes(b""),
    "a file gone": lambda folder: largest(folder).unlink(),
    "the seal cut short": lambda folder: folder.with_suffix(".json").write_text('{"upd'),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(tmp_path: Path, how: str):
    found, said = Checkpoints(tmp_path / "c"), []
    for update in (1, 2):
        found.save(update, state(update), {"score": 1.0})
    found.close()
    DAMAGE[how](tmp_path / "c" / "000002")
    restored, record = found.restore_last(state(0), said.append)
    same(restored, state(1))
    assert record["update"] == 1
    assert len(said) == 1
    assert "000002" in said[0]
    assert "falling back to 000001" in said[0]


def test_a_best_one_that_is_gone_is_said_to_be(tmp_path: Path):
    found, said = Checkpoints(tmp_path / "c"), []
    for update, score in ((1, 0.1), (2, 0.3), (3, 0.2)):
        found.save(update, state(update), {"score": score})
    found.close()
    assert found.restore_best(state(0), said.append, 0.1)[1]["update"] == 1
    assert not said
    (tmp_path / "c" / "000001.json").write_text("{}")
    assert found.restore_best(state(0), said.append, 0.1)[1]["update"] == 3
    assert "the best state, of score 0.1, is damaged or gone; the next best, 000003," in said[0]


def test_one_without_a_seal_does_not_exist_and_is_cleared_away(tmp_path: Path):
    found = Checkpoints(tmp_path / "c")
    for update in (1, 2):
        found.save(update, state(update), {})
    found.close()
    (tmp_path / "c" / "000002.json").unlink()
    assert found.restore_last(state(0), print)[1]["update"] == 1
    found.save(3, state(3), {})
    found.close()
    assert not (tmp_path / "c" / "000002").exists()


def test_files_of_others_among_checkpoints_are_left_alone(tmp_path: Path):
    found, folder = Checkpoints(tmp_path / "c"), tmp_path / "c"
    found.save(1, state(1), {})
    found.close()
    (folder / "7note.json").write_text("to do")
    (folder / "20251231.json").write_text("[1]")
    (folder / "notes").mkdir()
    found = Checkpoints(folder)
    assert found.restore_last(state(0), print)[1]["update"] == 1
    for update in (2, 3, 4):
        found.save(update, state(update), {})
    found.close()
    assert found.updates() == [3, 4]
    assert (folder / "20251231.json").read_text() == "[1]"
    assert (folder / "7note.json").exists()
    assert (folder / "notes").exists()
    # What would count as the newest checkpoint, and is none, is neither counted nor removed.
    (folder / "20251231").mkdir()
    (folder / "20251231.json").rename(folder / "20251231" / "diary.txt")
    with pytest.raises(CheckpointError, match="20251231 is no checkpoint: take it out"):
        Checkpoints(folder).restore_last(state(0), print)
    assert (folder / "20251231" / "diary.txt").exists()


def test_all_damaged_is_an_error_that_names_a_file(tmp_path: Path):
    found = Checkpoints(tmp_path / "c")
    found.save(1, state(1), {})
    found.close()
    flip(largest(tmp_path / "c" / "000001"))
    with pytest.raises(CheckpointError, match=r"checkpoint 000001: .* is damaged"):
        found.restore_last(state(0), print)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path):
    found = Checkpoints(tmp_path / "c")
    found.save(1, state(1), {})
    found.close()
    with pytest.raises(CheckpointError, match="does not fit"):
        found.restore(1, {"weights": jnp.zeros((5, 5))})
