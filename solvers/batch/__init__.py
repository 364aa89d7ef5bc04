"""Many problems at once.

`jax.vmap(fixed_point)` is right for every method. These are the forms that do better:

| form | what it does | use it when |
| --- | --- | --- |
| `race` | several starts, the first to converge ends the rest | one start may fail |
| `compacted` | the batch shrinks as examples finish | few examples need many times the steps |
| `lockstep` | the map sees the batch in its layout | weights are shared and products are large |

All take their methods, adjoints and policies from the same places as `fixed_point` does.
"""

from solvers.batch.compaction import compacted
from solvers.batch.lockstep import Sweeps, lockstep
from solvers.batch.race import race

__all__ = ["Sweeps", "compacted", "lockstep", "race"]
