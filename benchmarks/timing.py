"""Times several programs fairly on a machine that is never quiet: compiled first, interleaved.

Memory is kept from call to call, for all alike, as the library's commands keep it: what the system
takes for pages depends on who else is on the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from implicit_rnn.experiments import memory

Sampler = Callable[[], float]  # runs the program once more and returns the seconds it took

_SHORTEST_SAMPLE = 5e-3  # seconds; below that the clock and the dispatch would be measured
_LONGEST_BLOCK = 64  # calls in one sample

memory.keep()


class Timing(NamedTuple):
    """Seconds per call of one program, one sample per round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def minimum(self) -> float:
        return min(self.samples)

    def over(self, other: Timing) -> float:
        """This program's time over the other's: the median of the ratios round by round.

        Both samples of a round were taken moments apart, so that a disturbance lasting longer
        than a round cancels.
        """
        return statistics.median(a / b for a, b in zip(self.samples, other.samples, strict=True))


def stopwatch(function: Callable[..., Any], *arguments: Any) -> Sampler:
    """Samples `function(*arguments)`, which is compiled, and called twice, before the first sample.

    Short calls are repeated within a sample until it lasts 5 ms.
    """

    def call() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        return time.perf_counter() - begin

    call()
    calls = max(1, min(_LONGEST_BLOCK, round(_SHORTEST_SAMPLE / max(call(), 1e-6))))

    def sample() -> float:
        # The program before this one has filled the caches with its own data.
        jax.block_until_ready(function(*arguments))
        begin = time.perf_counter()
        for _ in range(calls):
            jax.block_until_ready(function(*arguments))
        return (time.perf_counter() - begin) / calls

    return sample


def interleaved(samplers: Mapping[str, Sampler], rounds: int) -> dict[str, Timing]:
    """One sample of every program a round, `rounds` times: A B C, B C A, C A B, ...

    The order rotates so that none always follows the same other. One more round comes first and
    is thrown away.
    """
    names = list(samplers)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + 1):
        shift = round_ % len(names)
        for name in names[shift:] + names[:shift]:
            seconds = samplers[name]()
            if round_ > 0:
                samples[name].append(seconds)
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def compare(programs: Mapping[str, tuple[Any, tuple]], rounds: int) -> list[dict[str, Any]]:
    """Every program timed beside every other; ratios are over the first, which is ours.

    Args:
      programs: by name, a function made by `jax.jit` and its arguments.
      rounds: as for `interleaved`.

    Returns:
      For each program `name`, `milliseconds`, `peer_over_ours`, `compile_seconds` and
      `temporary_megabytes`.
    """
    ours = next(iter(programs))
    compile_seconds = {}
    for name, (program, arguments) in programs.items():
        begin = time.perf_counter()
        program.lower(*arguments).compile()
        compile_seconds[name] = time.perf_counter() - begin
    samplers = {name: stopwatch(p, *a) for name, (p, a) in programs.items()}
    times = interleaved(samplers, rounds)
    rows = []
    for name, (program, arguments) in programs.items():
        memory = program.lower(*arguments).compile().memory_analysis().temp_size_in_bytes
        rows.append(
            {
                "name": name,
                "milliseconds": 1e3 * times[name].median,
                "peer_over_ours": times[name].over(times[ours]),
                "compile_seconds": compile_seconds[name],
                "temporary_megabytes": memory / 2**20,
            }
        )
    return rows
