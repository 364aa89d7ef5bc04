"""flax modules, nnx and linen, around the pure functions: solved, causal and bidirectional layers.

A linen module holds the parameters of its cell under `params/cell`, an nnx module as `nnx.Param`s
in `params`: both in the tree that `cell.init` gives. Every module takes `partition`, names of mesh
axes for some of the parameters by path, such as `{"input": (None, "model")}` or, in a cell within a
cell, `{"cell/gates": (None, "model")}`. They become the metadata that flax's own layers have with
`with_partitioning`; as there, nnx puts values on the mesh at once and needs one
(`jax.set_mesh(mesh)`), unless `nnx.use_eager_sharding(False)`.

In training, give an implicit layer `**recipe.settings()` and its optimiser to `recipe.optimiser`
(`implicit_rnn.training.Recipe`): without bounds its solves become harder as the weights grow. A
layer does not warn by itself, because a compiled program could only do so through a callback to the
host, which would keep it out of JAX's compilation cache. Call an `implicit_rnn.training.Watch` with
the `Info` that the layer returns; it warns once and names the line to change.
"""

from implicit_rnn.nn.batch import Ends, Solved, Unrolled
from implicit_rnn.nn.linen import LinenBidirectional, LinenImplicit, LinenRecurrent
from implicit_rnn.nn.nnx import Bidirectional, Implicit, Recurrent

__all__ = [
    "Bidirectional",
    "Ends",
    "Implicit",
    "LinenBidirectional",
    "LinenImplicit",
    "LinenRecurrent",
    "Recurrent",
    "Solved",
    "Unrolled",
]
