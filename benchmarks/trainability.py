"""What training does to the solves: recipes side by side on the biased walk.

    python -m benchmarks.trainability --width 64 --updates 3000 [--only NAME ...]

Every recipe trains the same model on the same batches. Results go to
`benchmarks/results/trainability.json` after each run; a recipe that is already there is skipped, so
an interrupted study goes on where it stopped. `docs/trainability.md` discusses them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import report
from implicit_rnn import cells
from implicit_rnn.experiments.walk.task import biased_walk
from implicit_rnn.sequence.equation import batch_equation, equation_map
from implicit_rnn.training import Recipe
from implicit_rnn.training.sources import Examples, buckets
from solvers import Sweeps, adjoint_probe, penalties

BATCH, SIZES, FEATURES = 32, (10, 20, 30, 40), 16
TRAIN, TEST = 50_000, 5_000


class Trial(NamedTuple):
    """A recipe and what is not in it."""

    recipe: Recipe
    penalty: float = 0.0  # weight of the Jacobian penalty
    warm: bool = False  # start from the states of the previous visit
    cell: Callable[[int], cells.Cell] = cells.igru


FORMER = Recipe(rtol=1e-2, free_sweeps=False)
TIGHT = dataclasses.replace(
    FORMER, rtol=1e-3, backward=Sweeps(rtol=1e-2, max_steps=100), max_steps=100
)
LOOSE = dataclasses.replace(FORMER, backward=Sweeps(rtol=5e-2, max_steps=20, on_failure="zero"))
FREE = dataclasses.replace(TIGHT, bounded="none")
TRIALS = {
    "plain sweeps, no bounds": Trial(dataclasses.replace(FREE, accelerated=False)),
    "sweeps, no bounds": Trial(FREE),
    "sweeps, newton, krylov, no bounds": Trial(
        dataclasses.replace(FREE, method="auto", backward="auto")
    ),
    "sweeps, jacobian penalty": Trial(FREE, penalty=0.1),
    "plain sweeps, bounds": Trial(dataclasses.replace(TIGHT, accelerated=False)),
    "sweeps, bounds": Trial(TIGHT),
    "sweeps, bounds by reparametrisation": Trial(
        dataclasses.replace(TIGHT, bounded="reparametrised")
    ),
    "sweeps, bounds, tied to the loss": Trial(dataclasses.replace(TIGHT, tied=0.05, loosest=0.1)),
    "sweeps, bounds, warm starts": Trial(TIGHT, warm=True),
    "sweeps, bounds, krylov": Trial(dataclasses.replace(TIGHT, backward="auto")),
    "loose sweeps, no bounds": Trial(dataclasses.replace(LOOSE, bounded="none")),
    "loose sweeps, bounds halved": Trial(dataclasses.replace(LOOSE, bound_scale=0.5)),
    "loose sweeps, bounds": Trial(LOOSE),
    "loose sweeps, truncated to 2": Trial(
        dataclasses.replace(LOOSE, backward=Sweeps(steps=2, on_failure="zero"))
    ),
    "default": Trial(Recipe()),
    "default, solved to 1e-2 without free sweeps": Trial(FORMER),
    "the same, bounds doubled": Trial(dataclasses.replace(FORMER, bound_scale=2.0)),
    "contractive cell": Trial(dataclasses.replace(LOOSE, bounded="none"), cell=cells.contractive),
}


def schedule(updates: int) -> optax.Schedule:
    return optax.cosine_decay_schedule(5e-3, updates)


def readout_loss(scores: jax.Array, batch: Examples) -> tuple[jax.Array, jax.Array]:
    """Mean cross-entropy and number of errors over the steps that count."""
    inside = jnp.arange(batch.labels.shape[1]) < batch.length[:, None]
    entropy = optax.sigmoid_binary_cross_entropy(scores, batch.labels)
    wrong = (scores > 0) != (batch.labels > 0)
    total = jnp.maximum(jnp.sum(inside), 1)
    return jnp.sum(jnp.where(inside, entropy, 0)) / total, jnp.sum(wrong & inside)


def readout(params: dict, states: jax.Array) -> jax.Array:
    return states @ params["weights"] + params["bias"]


class Run(NamedTuple):
    """What one training run measured."""

    params: Any
    forward: np.ndarray  # mean steps, by update
    most: np.ndarray  # most steps in the batch
    converged: np.ndarray  # share of the batch
    backward: np.ndarray  # mean steps, NaN where not observed
    backward_most: np.ndarray
    backward_converged: np.ndarray
    backward_residual: np.ndarray  # the largest of the batch
    milliseconds: np.ndarray
    loss: np.ndarray
    skipped: int
    finite: bool


def train_implicit(trial: Trial, width: int, updates: int, seed: int, data: Examples) -> Run:
    cell, recipe = trial.cell(width), trial.recipe
    key = jax.random.key(seed)
    params = {
        "layer": cell.init(key, FEATURES),
        "read": {"weights": jnp.zeros(width), "bias": jnp.zeros(())},
    }
    optimiser = recipe.optimiser({"layer": recipe.bounds(cell)}, optax.adam(schedule(updates)))
    state = optimiser.init(params)
    truncated = recipe.settings()["adjoint"] != "auto" and recipe.settings()["adjoint"].truncated

    def objective(params: Any, probe: Any, batch: Examples, start: Any, last: jax.Array):
        states, info = recipe.solve(
            cell,
            params["layer"],
            batch.inputs,
            length=batch.length,
            start=start,
            loss=last,
            probe=probe,
        )
        loss, _ = readout_loss(readout(params["read"], states), batch)
        extra = 0.0
        if trial.penalty:
            xs = jnp.swapaxes(batch.inputs, 0, 1)
            equation = batch_equation(cell, params["layer"], xs, batch.length)
            fixed = jax.lax.stop_gradient(jnp.swapaxes(states, 0, 1))
            norm = penalties.jacobian_norm(equation_map(cell), equation, fixed, jax.random.key(0))
            extra = trial.penalty * norm
        return loss + extra, (loss, info, states)

    def update(params, state, batch, start, last, observe: bool):
        probe = adjoint_probe((BATCH,)) if observe else None
        gradient = jax.value_and_grad(objective, (0, 1) if observe else 0, has_aux=True)
        (_, (loss, info, states)), found = gradient(params, probe, batch, start, last)
        grads, seen = found if observe else (found, None)
        changes, state = optimiser.update(grads, state, params)
        params = optax.apply_updates(params, changes)
        numbers = [loss, info.steps.mean(), info.steps.max(), info.converged.mean()]
        if observe:
            numbers += [seen.steps.mean(), seen.steps.max(), jnp.mean(seen.status == 0)]
            numbers += [jnp.max(seen.residual)]
        else:
            numbers += [jnp.nan] * 4
        return params, state, jnp.stack(numbers), states if trial.warm else None

    step = jax.jit(update, static_argnames="observe", donate_argnums=(0, 1))
    stream = buckets(data.length, BATCH, np.random.default_rng(seed), SIZES)
    memory = np.zeros((TRAIN, SIZES[-1], width), np.float32) if trial.warm else None
    visited = np.zeros(TRAIN, bool)
    last, log, times = jnp.float32(0.7), [], []
    for number in range(updates):
        index, length = next(stream)
        batch = Examples(*map(jnp.asarray, data.take(index, length)))
        observe = not truncated or number % 50 == 0
        begin = time.perf_counter()
        # A batch is one bucket: all of it visited, or (but for a remainder) none.
        start = memory[index, :length] if memory is not None and visited[index].all() else None
        params, state, numbers, states = step(params, state, batch, start, last, observe=observe)
        numbers = np.asarray(numbers)
        times.append(time.perf_counter() - begin)
        if memory is not None:
            memory[index, :length], visited[index] = states, True
        last = jnp.float32(numbers[0])
        log.append(numbers)
        if (number + 1) % max(updates // 10, 1) == 0:
            recent = np.array(log[-max(updates // 10, 1) :])
            print(
                f"  {number + 1:5d}  loss {recent[:, 0].mean():.4f}  "
                f"forward {recent[:, 1].mean():.1f} (most {recent[:, 2].max():.0f})  "
                f"backward {np.nanmean(recent[:, 4]):.1f} (most {np.nanmax(recent[:, 5]):.0f})  "
                f"converged {recent[:, 3].mean():.4f} / {np.nanmean(recent[:, 6]):.4f}  "
                f"{1e3 * np.median(times[-max(updates // 10, 1) :]):.1f} ms",
                flush=True,
            )
    log_array = np.array(log)
    finite = bool(all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(params)))
    return Run(
        params,
        *log_array.T[[1, 2, 3, 4, 5, 6, 7]],
        1e3 * np.array(times),
        log_array[:, 0],
        int(state.total_notfinite),
        finite,
    )


def test_implicit(trial: Trial, width: int, params: Any, data: Examples) -> dict:
    """Error of the trained model, solved to 1e-4 by the robust cascade."""
    cell = trial.cell(width)
    recipe = trial.recipe.exact()

    @jax.jit
    def evaluate(params: Any, batch: Examples):
        states, info = recipe.solve(cell, params["layer"], batch.inputs, length=batch.length)
        return readout_loss(readout(params["read"], states), batch)[1], info

    wrong, steps, converged = 0, [], []
    for first in range(0, TEST, 500):
        batch = Examples(*map(jnp.asarray, data.take(np.arange(first, first + 500))))
        errors, info = evaluate(params, batch)
        wrong += int(errors)
        steps.append(np.asarray(info.steps))
        converged.append(np.asarray(info.converged))
    return {
        "test_error": wrong / int(data.length.sum()),
        "test_steps": float(np.mean(np.concatenate(steps))),
        "test_steps_most": int(np.max(np.concatenate(steps))),
        "test_converged": float(np.mean(np.concatenate(converged))),
    }


def train_bidirectional(width: int, updates: int, seed: int, data: Examples, test: Examples):
    """Flax's bidirectional LSTM with as many parameters as the implicit GRU of this width."""
    count = 5 * width * (width + FEATURES + 1) + width + 1
    hidden = int((np.sqrt((FEATURES + 2) ** 2 + count / 2) - FEATURES - 2) / 2)
    layer = nn.Bidirectional(*[nn.RNN(nn.OptimizedLSTMCell(hidden)) for _ in range(2)])
    first = jnp.zeros((1, SIZES[-1], FEATURES))
    params = {
        "layer": layer.init(jax.random.key(seed), first),
        "read": {"weights": jnp.zeros(2 * hidden), "bias": jnp.zeros(())},
    }
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule(updates)))
    state = optimiser.init(params)

    def objective(params: Any, batch: Examples):
        states = layer.apply(params["layer"], batch.inputs, seq_lengths=batch.length)
        return readout_loss(readout(params["read"], states), batch)

    @jax.jit
    def step(params, state, batch):
        (loss, _), grads = jax.value_and_grad(objective, has_aux=True)(params, batch)
        changes, state = optimiser.update(grads, state, params)
        return optax.apply_updates(params, changes), state, loss

    stream = buckets(data.length, BATCH, np.random.default_rng(seed), SIZES)
    times = []
    for _ in range(updates):
        index, length = next(stream)
        batch = Examples(*map(jnp.asarray, data.take(index, length)))
        begin = time.perf_counter()
        params, state, loss = step(params, state, batch)
        loss.block_until_ready()
        times.append(time.perf_counter() - begin)
    evaluate, wrong = jax.jit(objective), 0
    for start in range(0, TEST, 500):
        batch = Examples(*map(jnp.asarray, test.take(np.arange(start, start + 500))))
        wrong += int(evaluate(params, batch)[1])
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    return {
        "test_error": wrong / int(test.length.sum()),
        "milliseconds": 1e3 * float(np.mean(times[len(times) // 10 :])),
        "parameters": parameters,
        "hidden": hidden,
    }


def summary(run: Run) -> dict:
    tenth = max(len(run.loss) // 10, 1)
    ends = {"first": slice(0, tenth), "last": slice(-tenth, None)}
    result: dict[str, Any] = {
        "finite": run.finite,
        "skipped_updates": run.skipped,
        "converged": float(run.converged.mean()),
        "backward_converged": float(np.nanmean(run.backward_converged)),
        "backward_residual": float(np.nanmedian(run.backward_residual)),
        "forward_most": int(run.most.max()),
        "backward_most": int(np.nanmax(run.backward_most)),
        "milliseconds": float(np.mean(run.milliseconds[tenth:])),
        "train_loss": float(run.loss[-tenth:].mean()),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.params)),
    }
    for name, part in ends.items():
        result[f"forward_{name}"] = float(run.forward[part].mean())
        result[f"backward_{name}"] = float(np.nanmean(run.backward[part]))
    return result


def markdown(runs: dict[str, dict]) -> str:
    """The table of `docs/trainability.md`."""
    lines = [
        "| recipe | forward steps, first / last tenth (most) | backward steps | converged, forward "
        "/ backward | test error | ms an update |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name in [*TRIALS, "b-LSTM"]:
        if name not in runs:
            continue
        entry = runs[name]
        cells_ = [f"{entry['test_error']:.4f}", f"{entry['milliseconds']:.0f}"]
        if name == "b-LSTM":
            cells_ = ["", "", "", *cells_]
        else:
            both = [entry["converged"], entry["backward_converged"]]
            shares = [f"{100 * share:.2f} %" for share in both]
            cells_ = [
                f"{entry['forward_first']:.1f} / {entry['forward_last']:.1f} "
                f"({entry['forward_most']})",
                f"{entry['backward_first']:.1f} / {entry['backward_last']:.1f} "
                f"({entry['backward_most']})",
                f"{shares[0]} / {'truncated' if both[1] < 0.5 else shares[1]}",
                *cells_,
            ]
        lines.append(f"| {name} | " + " | ".join(cells_) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--bias", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[*TRIALS, "b-LSTM"])
    parser.add_argument("--save", help="write the weights of the last run to this .npz file")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    arguments = parser.parse_args()
    command = f"python -m benchmarks.trainability --width {arguments.width}"
    command += f" --updates {arguments.updates} --bias {arguments.bias:g} --seed {arguments.seed}"
    path = report.RESULTS / "trainability.json"
    result = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    if arguments.table:
        for setting, runs in result["runs"].items():
            print(f"{setting}\n\n{markdown(runs)}\n")
        return
    result |= report.environment(command, ["jax", "jaxlib", "flax", "optax"])
    train = biased_walk(2 * arguments.seed, TRAIN, bias=arguments.bias)
    test = biased_walk(2 * arguments.seed + 1, TEST, bias=arguments.bias)
    setting = f"width {arguments.width}, {arguments.updates} updates, b {arguments.bias:g}"
    setting += f", seed {arguments.seed}"
    runs = result["runs"].setdefault(setting, {})
    for name in arguments.only or [*TRIALS, "b-LSTM"]:
        if name in runs and not arguments.save:
            continue
        print(f"{setting}: {name}", flush=True)
        if name == "b-LSTM":
            entry = train_bidirectional(
                arguments.width, arguments.updates, arguments.seed, train, test
            )
        else:
            trial = TRIALS[name]
            run = train_implicit(trial, arguments.width, arguments.updates, arguments.seed, train)
            entry = summary(run) | test_implicit(trial, arguments.width, run.params, test)
            if arguments.save:
                leaves = jax.tree_util.tree_leaves_with_path(run.params["layer"])
                weights = {jax.tree_util.keystr(p): np.asarray(leaf) for p, leaf in leaves}
                np.savez(arguments.save, **weights)
        runs[name] = entry
        print("  " + json.dumps(entry), flush=True)
        report.write("trainability", result)


if __name__ == "__main__":
    main()
