"""What the library depends on and what it does not do: bounds, checksums, nothing executed."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path

import pytest

from implicit_rnn.experiments.data.catalogue import DATASETS
from implicit_rnn.training.tables import dump
from tests.implicit_rnn.experiments.problems import CONTENT

_BOUNDS = re.compile(r"([A-Za-z0-9-]+)(?:\[\w+\])?>=([0-9.]+),<([0-9.]+)")


def declared(root: Path) -> dict[str, tuple[str, str]]:
    """Every dependency, also of extras, with its lowest version and the first that is too new."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found = {}
    for text in [text for part in lists for text in part]:
        bounds = _BOUNDS.fullmatch(text)
        assert bounds, f"{text}: a lowest and a highest version wanted"
        found[bounds[1]] = bounds[2], bounds[3]
    return found


def pinned(root: Path) -> dict[str, str]:
    """Every pinned version, by name."""
    lines = (root / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs)
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_every_dependency_has_bounds_and_a_pinned_version_within(root: Path) -> None:
    pins = pinned(root)
    for name, (least, beyond) in declared(root).items():
        assert number(least) <= number(pins[name]) < number(beyond), name


# What runs what a file or a user says.
FORBIDDEN = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle", "cPickle", "dill",
    "cloudpickle", "joblib", "marshal", "shelve", "subprocess", "tarfile", "shutil.unpack_archive",
    "extractall", "yaml.load", "allow_pickle", "urlretrieve",
}  # fmt: skip


def names(tree: ast.Module) -> set[str]:
    """Names that a program imports, calls or passes as keywords."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
        elif isinstance(node, ast.keyword):
            found.add(node.arg or "")
        elif isinstance(node, ast.Call):
            found |= {ast.unparse(node.func), ast.unparse(node.func).rsplit(".", 1)[-1]}
    return found


def test_nothing_that_is_read_is_executed_or_unpacked(root: Path) -> None:
    """No pickle, no eval, no shell, no tar: neither here nor under another name."""
    for package in ("solvers", "implicit_rnn"):
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_text()
            tree = ast.parse(text)
            found = FORBIDDEN & names(tree)
            if "compile" in found:  # of a pattern, or of a program of jax
                calls = [ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Call)]
                own = [call for call in calls if call.startswith("compile(")]
                found -= set() if own else {"compile"}
            assert not found, f"{path.relative_to(root)}: {found}"


def test_every_data_file_has_a_checksum(root: Path) -> None:
    files = [file for found in DATASETS.values() for file in found.files]
    assert files
    for file in files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256), file.path
        assert file.size > 0
        assert file.url is None or file.url.startswith("https://"), file.path
    own = {path.name: path for path in (root / "implicit_rnn").rglob("*") if path.suffix == ".txt"}
    assert {*own} == {"digits.txt"}
    assert hashlib.sha256(own["digits.txt"].read_bytes()).hexdigest() == (
        "6c17be73f1963a9e403664ba1b72abd3d3b589e60b0152bb3db722ee9cb23594"
    )


SMOKE = """
import sys, jax, jax.numpy as jnp, numpy as np
import solvers
from implicit_rnn import cells, implicit, nn
from implicit_rnn.cli import main
f = lambda theta, x: jnp.tanh(theta * x + 0.5)
for method in ("picard", "anderson", "broyden", "newton", "auto"):
    value, info = solvers.fixed_point(f, jnp.float32(0.5), jnp.zeros(3), method=method)
    assert info.converged, method
for adjoint in ("implicit", "tangent", "one_step"):
    loss = lambda t: solvers.fixed_point(f, t, jnp.zeros(3), adjoint=adjoint)[0].sum()
    assert np.isfinite(jax.grad(loss)(jnp.float32(0.5))), adjoint
from implicit_rnn.nn import linen, nnx
from implicit_rnn.experiments.translation import bpe, moses, use
assert bpe.learn(["low low low lower", "lower lot low low"], 2) == [("l", "o"), ("lo", "w ")]
assert moses.readable(moses.escaped("It's late.", "en"), "en") == "it's late."
assert use.bleu(["a b c d e"], ["a b c d e"])[0] > 99.9
config, output = sys.argv[1:]
for words in (["list"], ["train", config, "--output", output], ["evaluate", output],
              ["train", config, "--output", output, "--resume"], ["plot", output]):
    assert main(words) == 0, words
"""


@pytest.mark.slow
def test_the_lowest_declared_versions_install_and_work(root: Path, tmp_path: Path) -> None:
    """A new environment with the lowest version of everything that is needed to run, translate."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["translation"]
    needed = [_BOUNDS.fullmatch(text) for text in [*project["dependencies"], *extra]]
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        [*install, *(f"{found[1]}=={found[2]}" for found in needed if found)],
        capture_output=True,
        text=True,
    )
    if "Could not fetch URL" in done.stderr or "Temporary failure" in done.stderr:
        pytest.skip("no package index can be reached")
    assert not done.returncode, done.stderr[-3000:]
    content = CONTENT | {"training": CONTENT["training"] | {"updates": 8}}
    (tmp_path / "small.toml").write_text(dump(content))
    own = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    done = subprocess.run(
        [python, "-c", SMOKE, tmp_path / "small.toml", tmp_path / "out"],
        cwd=tmp_path,
        env=own | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stdout[-500:] + done.stderr[-3000:]
