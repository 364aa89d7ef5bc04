"""A newcomer's first hour: the guides followed to the letter, in a copy, and used from outside."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# What each guide asks for: its registry, and where the name comes from.
ADDED = {
    "adding_a_method.md": ("solvers/fixed_point/__init__.py", "solvers.fixed_point.aitken"),
    "adding_a_cell.md": ("implicit_rnn/cells/__init__.py", "implicit_rnn.cells.leaky"),
    "adding_an_experiment.md": (
        "implicit_rnn/experiments/registry.py",
        "implicit_rnn.experiments.parity.task",
    ),
}
USED = """
import jax, jax.numpy as jnp
import implicit_rnn, solvers
from implicit_rnn import cells, models, nn, training
from flax import nnx

assert not implicit_rnn.__file__.startswith({root!r}), implicit_rnn.__file__
x, info = solvers.fixed_point(
    lambda a, x: jnp.cos(a * x), 1.0, jnp.zeros(3), method="aitken", adjoint="implicit"
)
assert info.converged
assert jnp.allclose(x, jnp.cos(x), atol=1e-4)

# By the registry, by its function, and with either neighbour: in a network, and as a layer.
cell = cells.CELLS["leaky"](4, rate=0.3)
assert cell == cells.CELLS["leaky"](4, rate=0.3)
for what in (("leaky", 4), ("bileaky", 4), (cells.implicit(cell),)):
    network = models.tagger(models.encoder(*what), 3, 2)
    jax.eval_shape(network.init, jax.random.key(0))
layer = nn.Implicit(cells.implicit(cell), 3, rngs=nnx.Rngs(0))
outputs, info = layer(jnp.ones((2, 5, 3)))
assert outputs.shape == (2, 5, 4)
assert info.converged.all()
"""


def follow(guide: Path, copy: Path) -> None:
    """Writes the files that a guide shows under a path, and adds the lines of its differences."""
    text = guide.read_text()
    # "complete, as `PATH`:" and then the file; "and `PATH`:" and then the configuration.
    files = re.findall(
        r"`([\w/]+\.(?:py|toml))`:\s+```(?:python|toml)\n(.*?)^```$", text, re.M | re.S
    )
    assert files, guide.name
    for name, content in files:
        path = copy / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        if path.suffix == ".py" and not (path.parent / "__init__.py").exists():
            (path.parent / "__init__.py").write_text("")
    registry, module = ADDED[guide.name]
    above, line = re.search(r"```diff\n (.*)\n\+(.*)\n```", text).groups()
    name = re.search(r": (\w+),", line)[1]
    content = (copy / registry).read_text()
    assert f"`{registry}`]" in text or f"({'../' + registry})" in text
    opening = re.search(rf"^{re.escape(above.split(' = ')[0])}\b.*$", content, re.M)[0]
    content = content.replace(opening, f"from {module} import {name}\n\n{opening}\n{line}", 1)
    (copy / registry).write_text(content)


@pytest.mark.slow
def test_the_steps_of_the_guides_lead_where_they_say(root: Path, tmp_path: Path) -> None:
    copy, empty = tmp_path / "copy", tmp_path / "empty"
    empty.mkdir()
    for name in ("implicit_rnn", "solvers", "configs"):
        shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for guide in ADDED:
        follow(root / "docs" / guide, copy)

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=empty,
            env=os.environ | {"PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
        )
        assert not done.returncode, done.stderr
        return done.stdout

    run("-c", USED.format(root=str(root)))
    # Tests that go over the registry take the new cell by themselves.
    for name in ("pyproject.toml", "tests/__init__.py", "tests/conftest.py"):
        (copy / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / name, copy / name)
    common = "tests/implicit_rnn/cells/test_factory.py"
    (copy / common).parent.mkdir(parents=True)
    shutil.copy(root / common, copy / common)
    quiet = ("-q", "-n0", "-p", "no:cacheprovider", "-c", str(copy / "pyproject.toml"))
    assert "4 passed" in run("-m", "pytest", *quiet, "-k", "leaky", str(copy / common))
    listed = run("-m", "implicit_rnn.cli", "list")
    for words in ("parity", "Rows of bits.", "Parity of twelve bits", "leaky"):
        assert words in listed
    small = ("training.updates=4", "training.batch=8", "training.buckets=1", "task.count=60")
    quick = [word for setting in small for word in ("--set", setting)]
    run("-m", "implicit_rnn.cli", "train", "parity", "--profile", "quick", *quick)
    folder = empty / "runs" / "parity-quick"
    assert {path.parent.name for path in folder.glob("*/result.json")} == {"igru", "lstm"}
    assert (folder / "table.json").exists()
    assert (folder / "report.html").exists()
    own = (copy / "configs" / "parity.toml").read_text().partition("[variants")[0]
    (empty / "own.toml").write_text(f'{own}encoder = "bileaky"\nrate = 0.3\n')
    run("-m", "implicit_rnn.cli", "train", "own.toml", "--no-figures", *quick)
    assert (empty / "runs" / "own" / "result.json").exists()
