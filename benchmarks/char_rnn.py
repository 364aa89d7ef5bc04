"""The char-RNN beside flax's LSTM: same size, same windows, same budget, one loop.

    python -m benchmarks.char_rnn [--profile quick]

Trains `configs/char_rnn.toml` with the library's LSTM and with a language model made of flax's
`nn.RNN(nn.OptimizedLSTMCell)`, both by the library's training loop, then times their steps side by
side. Writes bits per character on the held-out tenth, times and a sample to
`results/char_rnn.json`; an interrupted run goes on where it was.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import report, timing
from implicit_rnn.experiments import config
from implicit_rnn.experiments.registry import build
from implicit_rnn.experiments.train import how
from implicit_rnn.models.base import label_sums
from implicit_rnn.training import loop, trainer
from implicit_rnn.training.checkpoint import Checkpoints
from implicit_rnn.training.files import write_json
from implicit_rnn.training.folder import keep_configuration

ROOT = Path(__file__).parents[1]


class Peer(NamedTuple):
    """A `Model` made of flax's modules."""

    init: Any
    loss: Any
    carry: Any


def flax_model(vocabulary: int, hidden: int) -> Peer:
    """One-hot characters, flax's LSTM, a linear read-out: what ours has."""
    cell = nn.OptimizedLSTMCell(hidden)
    layer, read = nn.RNN(cell, return_carry=True), nn.Dense(vocabulary)

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key)
        return {
            "layer": layer.init(keys[0], jnp.zeros((1, 2, vocabulary))),
            "read": read.init(keys[1], jnp.zeros((1, hidden))),
        }

    def carry(params: Any, batch: int) -> Any:
        return cell.initialize_carry(jax.random.key(0), (batch, vocabulary))

    def loss(params: Any, batch: Any, *, key: Any = None, carry: Any = None) -> Any:
        from implicit_rnn.models import Outcome

        inputs = jax.nn.one_hot(batch.tokens[:, :-1], vocabulary)
        start = carry
        if start is None:
            start = cell.initialize_carry(jax.random.key(0), (inputs.shape[0], vocabulary))
        start = jax.lax.stop_gradient(start)
        last, outputs = layer.apply(params["layer"], inputs, initial_carry=start)
        scores = read.apply(params["read"], outputs)
        mask = jnp.ones(batch.tokens[:, 1:].shape, bool)
        mean, sums = label_sums(scores, batch.tokens[:, 1:], mask)
        return mean, Outcome(sums | {"bits": sums["loss"] / np.log(2)}, carry=last)

    return Peer(init, loss, carry)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    settings = config.load(ROOT / "configs/char_rnn.toml", arguments.profile).runs[""]
    name = "char_rnn" + (f"-{arguments.profile}" if arguments.profile else "")
    command = "python -m benchmarks.char_rnn"
    command += f" --profile {arguments.profile}" if arguments.profile else ""
    task, ours = build(settings.task, settings.model)
    peer = flax_model(task.sizes["vocabulary"], settings.model["hidden"])
    rows, steps = {}, {}
    for label, model in (("ours", ours), ("flax", peer)):
        parts = trainer(task, model, **how(settings))
        folder = ROOT / "runs" / name / label
        result = folder / "result.json"
        if result.exists():
            keep_configuration(folder, settings.table())
        else:
            loop.run(
                parts,
                folder,
                configuration=settings.table(),
                resume=True,
                command=command,
                name=label,
            )
        rows[label] = json.loads(result.read_text())
        source = task.splits["train"]
        entry = source.plan(settings.training.batch, 1, np.random.default_rng(0))[0]
        step = jax.jit(lambda state, batch, parts=parts: parts.step(state, batch))  # keeps both
        steps[label] = timing.stopwatch(step, parts.init(), source.batch(entry))
        if label == "ours":
            checkpoints = Checkpoints(folder / "checkpoints")
            state, _ = checkpoints.restore_best(jax.eval_shape(parts.init), print)
            sample = _sample(ours, state.params, task.details["alphabet"])
    times = timing.interleaved(steps, arguments.rounds)
    content = report.environment(command, ["jax", "jaxlib", "flax", "optax"]) | {
        "rows": [
            {
                "model": label,
                "bits per character, held-out tenth": row["test"]["bits"],
                "bits, validation": row["valid"]["bits"],
                "parameters": row["parameters"],
                "updates": row["updates"],
                "characters an update": settings.training.batch * settings.task["window"],
                "seconds": row["seconds"],
                "step, milliseconds": 1e3 * times[label].median,
                "step, over flax's": times[label].over(times["flax"]),
            }
            for label, row in rows.items()
        ],
        "config": settings.table(),
        "sample": sample,
    }
    report.table(
        "character language model",
        list(content["rows"][0]),
        [list(row.values()) for row in content["rows"]],
    )
    print(sample)
    print("wrote", write_json(ROOT / "results" / f"{name}.json", content).relative_to(ROOT))


def _sample(model: Any, params: Any, alphabet: list[str], count: int = 500) -> str:
    number = {character: index for index, character in enumerate(alphabet)}
    prompt = jnp.array([number[character] for character in "ROMEO:\n"])
    drawn = jax.jit(model.sample, static_argnums=3)(params, jax.random.key(0), prompt, count, 0.7)
    return "ROMEO:\n" + "".join(alphabet[int(token)] for token in drawn)


if __name__ == "__main__":
    main()
