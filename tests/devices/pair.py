"""What all devices find together: here, or `python -m tests.devices.pair ADDRESS NUMBER FILE`.

So called it is one of two processes, the first of which writes what they found.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType

import implicit_rnn
from implicit_rnn.training import Layout, processes
from tests.devices.problems import CELL, after, graded, inputs, parameters, parts, words

LONG = 4096


def everything() -> dict[str, np.ndarray]:
    """Parameters after twenty updates, replicated and by a rule; a long solve and its gradient."""
    several = jax.device_count() > 1
    sharded = time = None
    if several:
        # The axis of the shards goes from process to process.
        mesh = jax.make_mesh((2, jax.device_count() // 2), ("model", "data"), (AxisType.Auto,) * 2)
        sharded = Layout(mesh, {"embedding/": ("model", "")})
        time = jax.make_mesh((jax.device_count(),), ("time",), (AxisType.Auto,))

    def solve(*arguments):
        if time is None:
            return implicit_rnn.implicit(*arguments, rtol=1e-5)
        return implicit_rnn.implicit_sharded(*arguments, rtol=1e-5, mesh=time)

    trained = after(parts())
    given = jax.tree.map(np.asarray, (parameters(CELL), inputs(LONG)))
    gradient, (states, info) = graded(solve, CELL)(*given, None)
    tree = {
        "params": trained.params,
        "totals": {name: trained.totals[name] for name in ("solves", "forward_steps", "converged")},
        "table": after(words(sharded, accumulate=2)).params,
        "states": states,
        "gradient": gradient,
        "steps": info.steps,
    }
    leaves = jax.tree_util.tree_leaves_with_path(processes.gathered(tree))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


if __name__ == "__main__":
    processes.join(sys.argv[1], 2, int(sys.argv[2]))
    assert jax.device_count() == 2 * jax.local_device_count() == 4
    result = everything()
    if processes.first():
        np.savez(Path(sys.argv[3]), **result)
    processes.wait("the result")
    jax.distributed.shutdown()
