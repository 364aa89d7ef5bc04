"""A training step of the tagger: the implicit GRU against a bidirectional LSTM of its size.

    python -m benchmarks.tagging [--rounds 15] [--updates 100] [--variants igru bilstm]

The step is that of `implicit-rnn train configs/tagging_ud.toml`, whole: loss, gradient, update, at
batches of 20. Every variant is trained first, on the same batches, because solves of trained
weights are not those of fresh ones. Then each bucket of lengths is timed, interleaved, every round
with another batch; the sum over an epoch weighs buckets by their batches. The sentences are those
of UD English EWT where it is, else generated ones with about its lengths and vocabulary.
"""

from __future__ import annotations

import argparse
import collections
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import report
from benchmarks.timing import Sampler, Timing, interleaved
from implicit_rnn.experiments import data
from implicit_rnn.experiments.config import Config, load
from implicit_rnn.experiments.registry import MODELS, TASKS
from implicit_rnn.experiments.tagging import Sentence, vocabulary, words_task
from implicit_rnn.experiments.task import Task
from implicit_rnn.experiments.train import how
from implicit_rnn.training.sources import Source
from implicit_rnn.training.step import State, Trainer, trainer

CONFIG = Path(__file__).parents[1] / "configs" / "tagging_ud.toml"


def task_of(config: Config) -> tuple[Task, str]:
    """The corpus of the configuration, or one like it; and what it is."""
    options = {key: value for key, value in config.task.items() if key != "name"}
    try:
        return TASKS[config.task["name"]](**options), "UD English EWT"
    except data.DataError:
        return generated(12_544, 17_000, 49), "generated"


def generated(count: int, words: int, tags: int) -> Task:
    """Sentences of any words: lengths and frequencies fall off as in a corpus."""
    rng = np.random.default_rng(0)
    length = np.clip(rng.gamma(1.3, 12.5, count).astype(int) + 1, 1, 159)
    # By Zipf's law the number of a word is about log-uniform.
    numbers = np.exp(rng.uniform(0, np.log(words), length.sum())).astype(int)
    flat = iter(zip(numbers.tolist(), rng.integers(0, tags, length.sum()).tolist(), strict=True))
    sentences = []
    for size in length:
        found = [next(flat) for _ in range(size)]
        sentences.append(
            Sentence(tuple(f"word{w}" for w, _ in found), tuple(f"T{t}" for _, t in found))
        )
    return words_task(vocabulary(sentences), {"train": sentences})


class Runner:
    """A variant in training, batch after batch."""

    def __init__(self, parts: Trainer) -> None:
        self.parts = parts
        self.state: State = parts.init()

    def step(self, batch: Any) -> float:
        """One update; its seconds."""
        begin = time.perf_counter()
        self.state = self.parts.step(self.state, batch)
        jax.block_until_ready(self.state)
        return time.perf_counter() - begin

    def sampler(self, source: Source, entries: list) -> Sampler:
        """Samples updates, each with the next of these batches."""
        place = 0

        def sample() -> float:
            nonlocal place
            place += 1
            return self.step(source.batch(entries[place % len(entries)]))

        return sample


def timed(
    runners: dict[str, Runner], source: Source, buckets: dict[int, list], rounds: int
) -> dict[int, dict[str, Timing]]:
    """By bucket and variant, the time of an update."""
    found = {}
    for size, entries in buckets.items():
        samplers = {name: runner.sampler(source, entries) for name, runner in runners.items()}
        for sample in samplers.values():
            sample()  # compiles, where training has not come by
        found[size] = interleaved(samplers, rounds)
    return found


def epoch(times: dict[int, dict[str, Timing]], buckets: dict[int, list], name: str) -> Timing:
    """The mean update of an epoch, round by round."""
    total = sum(map(len, buckets.values()))
    shares = [len(entries) / total for entries in buckets.values()]
    rounds = zip(*(times[size][name].samples for size in buckets), strict=True)
    return Timing(tuple(sum(s * t for s, t in zip(shares, found, strict=True)) for found in rounds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--updates", type=int, default=100, help="of training before")
    parser.add_argument("--variants", nargs="+", default=["igru", "bilstm"])
    options = parser.parse_args()
    configs = load(CONFIG).runs
    task, corpus = task_of(configs[options.variants[0]])
    source = task.splits["train"]
    runners = {}
    for name in options.variants:
        model = {key: value for key, value in configs[name].model.items() if key != "name"}
        made = MODELS[configs[name].model["name"]](task, **model)
        runners[name] = Runner(trainer(task, made, **how(configs[name])))
    training = configs[options.variants[0]].training
    plan = source.plan(training.batch, training.buckets, np.random.default_rng(0))
    buckets = collections.defaultdict(list)
    for entry in plan:
        buckets[entry[1]].append(entry)
    buckets = dict(sorted(buckets.items()))
    for entry in plan[: options.updates]:
        batch = source.batch(entry)
        for runner in runners.values():
            runner.step(batch)
    times = timed(runners, source, buckets, options.rounds)

    base, *others = options.variants
    rows = []
    for size in [*buckets, None]:
        row: dict[str, Any] = {"name": "an epoch's mean" if size is None else f"to {size} words"}
        row["batches"] = len(plan if size is None else buckets[size])
        found = {
            name: epoch(times, buckets, name) if size is None else times[size][name]
            for name in options.variants
        }
        row |= {f"{name}_milliseconds": 1e3 * found[name].median for name in options.variants}
        row |= {f"{base}_over_{name}": found[base].over(found[name]) for name in others}
        rows.append(row)
    report.show(f"training step, batches of {training.batch}, {corpus}", rows)
    command = (
        f"python -m benchmarks.tagging --rounds {options.rounds} --updates {options.updates} "
        f"--variants {' '.join(options.variants)}"
    )
    result = report.environment(command, ["jax", "jaxlib", "optax"])
    result |= {"corpus": corpus, "batch": training.batch, "steps": rows, "variants": {}}
    for name, runner in runners.items():
        params = runner.state.params
        result["variants"][name] = {
            "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
            "of the encoder": sum(leaf.size for leaf in jax.tree.leaves(params["encoder"])),
        }
    report.write("tagging", result)


if __name__ == "__main__":
    main()
