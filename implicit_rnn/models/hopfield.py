"""The continuous Hopfield network: an associative memory that settles into what it has stored.

Section 5.1 of the 2018 paper on recurrent back-propagation. The neurons are observed ones, which
are held at the pixels of an image, hidden ones and output ones, one for each pixel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import solvers
from implicit_rnn.cells.base import Params
from implicit_rnn.models.base import NO_SETTINGS, Outcome, layer_probe, stacked
from implicit_rnn.sequence.equilibrium import learning_rule
from solvers import Info

_THROUGH_TIME = ("bptt", "tbptt")


class Hopfield(NamedTuple):
    """A `Model` that completes images.

    A state is that of the neurons that are free to move: the hidden ones, then the output ones.

    Attributes:
      init, loss, bounds, solves, carry: as for every `Network`; a batch has `observed` and `target`
        `[batch, pixels]`; the loss is `mean |output - target|`, and sums are `loss`, `error` (the
        share of pixels that are on the wrong side of 1/2) and `count` (images).
      weights: `params -> [neurons, neurons]`, symmetric and with a diagonal of zeros; observed
        neurons come first. (The weights between these change nothing.)
      settle: `(params, observed, *, key=None, probe=None) -> (states, Info)`, for a batch.
      outputs: `states -> [..., pixels]`, what is read out.
      trajectory: `(params, observed, count) -> [count + 1, free]`: one image's state, step by step.
      energy: `(params, observed, state) -> scalar`, of one image: what settling lowers.
    """

    init: Callable[[jax.Array], Params]
    loss: Callable[..., tuple[jax.Array, Outcome]]
    weights: Callable[[Params], jax.Array]
    settle: Callable[..., tuple[jax.Array, Info]]
    outputs: Callable[[jax.Array], jax.Array]
    trajectory: Callable[[Params, jax.Array, int], jax.Array]
    energy: Callable[[Params, jax.Array, jax.Array], jax.Array]
    bounds: Any
    solves: int = 1
    carry: None = None


def hopfield(
    pixels: int = 784,
    hidden: int = 1024,
    *,
    rule: str = "neumann",
    truncation: int = 20,
    uniform: bool = False,
    steps: int = 50,
    tolerance: float = 1e-5,
    scale: float = 1e-3,
    read_out: Literal["state", "activation"] = "state",
    time_constant: float = 1.0,
    gain: float = 0.5,
    step: float = 1.0,
) -> Hopfield:
    """Neurons that follow equation 19, with a = `time_constant` and b = `gain`,

        dh_i/dt = -h_i / a + sum_j w_ij x_j + I_i,    x_j = sigmoid(b h_j),

    in steps of Euler's method, until they settle. Observed neurons stay at `h_i = I_i`, their
    pixels; for all others `I_i = 0`, and they start at 0.

    Args:
      pixels: how many neurons are observed, and how many are outputs.
      hidden: how many are neither.
      rule: how gradients pass, one of `implicit_rnn.sequence.equilibrium.RULES`.
      truncation: steps after which the rule stops.
      uniform: let `rbp` start from draws in [0, 1], as in the paper; other rules draw nothing.
      steps: most steps of an inference.
      tolerance: relative residual at which it ends.
      scale: standard deviation of the parameters at first.
      read_out: what is compared with pixels: the `"state"` h of output neurons, as in the paper's
        public code, or their `"activation"` x, as in its text. Activations saturate: with Adam at a
        rate of 1e-3, all outputs are at the median of ten images of MNIST after as many updates.
      time_constant, gain: see above.
      step: of Euler's method. At `step = a` the state becomes what the neurons receive; see
        `descent_step` for what makes the energy fall.

    Parameters: `halves` `[neurons, neurons]`; the weights are this matrix plus its transpose, but
    for the diagonal.
    """
    for name, value in {"pixels": pixels, "hidden": hidden, "steps": steps}.items():
        if value < (0 if name == "hidden" else 1):
            raise ValueError(f"{name} must be at least {int(name != 'hidden')}, got {value}")
    if read_out not in ("state", "activation"):
        raise ValueError(f'read_out must be "state" or "activation", got {read_out!r}')
    if min(time_constant, gain, step) <= 0:
        raise ValueError(
            f"time_constant, gain and step must be positive, got {time_constant}, {gain}, {step}"
        )
    learning_rule(rule, truncation)  # says at once what is wrong with them
    free = hidden + pixels

    parts = _Continuous(
        scale=scale,
        pixels=pixels,
        free=free,
        gain=gain,
        step=step,
        time_constant=time_constant,
        rule=rule,
        truncation=truncation,
        uniform=uniform,
        tolerance=tolerance,
        steps=steps,
        hidden=hidden,
        read_out=read_out,
    )
    return Hopfield(
        parts.init,
        parts.loss,
        parts.weights,
        parts.settle,
        parts.outputs,
        parts.trajectory,
        parts.own_energy,
        {},
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Continuous:
    """What a Hopfield network does."""

    scale: float
    pixels: int
    free: int
    gain: float
    step: float
    time_constant: float
    rule: str
    truncation: int
    uniform: bool
    tolerance: float
    steps: int
    hidden: int
    read_out: Literal["state", "activation"]

    def init(self, key: jax.Array) -> Params:
        return {
            "halves": self.scale
            * jax.random.normal(key, (self.pixels + self.free, self.pixels + self.free))
        }

    def weights(self, params: Params) -> jax.Array:
        return symmetric(params["halves"])

    def euler(self, theta: tuple[jax.Array, jax.Array], state: jax.Array) -> jax.Array:
        inner, drive = theta
        received = jax.nn.sigmoid(self.gain * state) @ inner + drive
        return state + self.step * (received - state / self.time_constant)

    def theta_of(self, params: Params, observed: jax.Array) -> tuple[jax.Array, jax.Array]:
        halves = params["halves"]
        across = halves[: self.pixels, self.pixels :] + halves[self.pixels :, : self.pixels].T
        return symmetric(halves[self.pixels :, self.pixels :]), jax.nn.sigmoid(
            self.gain * observed
        ) @ across

    def settle(
        self,
        params: Params,
        observed: jax.Array,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
    ) -> tuple[jax.Array, Info]:
        inner, drive = self.theta_of(params, observed)
        adjoint = learning_rule(
            self.rule, self.truncation, uniform=self.uniform and self.rule == "rbp", key=key
        )

        def solve(drive: jax.Array, probe: Info | None) -> tuple[jax.Array, Info]:
            return solvers.fixed_point(
                self.euler,
                (inner, drive),
                jnp.zeros_like(drive),
                method="picard",
                adjoint=adjoint,
                rtol=self.tolerance,
                max_steps=self.steps,
                probe=probe,
            )

        if self.rule not in _THROUGH_TIME:
            return jax.vmap(solve, (0, None if probe is None else 0))(drive, probe)
        # Going back through the steps of each image apart would keep a gradient of the weights for
        # each image; the batch as one state keeps one.
        states, info = solve(drive, probe)
        return states, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, drive.shape[:1]), info)

    def outputs(self, states: jax.Array) -> jax.Array:
        found = states[..., self.hidden :]
        return found if self.read_out == "state" else jax.nn.sigmoid(self.gain * found)

    def loss(
        self,
        params: Params,
        batch: Any,
        *,
        key: jax.Array | None = None,
        probe: Info | None = None,
        solve: Mapping[str, Any] = NO_SETTINGS,
        carry: None = None,
    ) -> tuple[jax.Array, Outcome]:
        states, info = self.settle(params, batch.observed, key=key, probe=layer_probe(probe, 0))
        found = self.outputs(states)
        distance = jnp.mean(jnp.abs(found - batch.target), axis=-1)
        wrong = jnp.mean((found > 0.5) != (batch.target > 0.5), axis=-1)
        sums = {
            "loss": jnp.sum(distance),
            "error": jnp.sum(wrong),
            "count": jnp.asarray(len(distance), distance.dtype),
        }
        return jnp.mean(distance), Outcome(sums, stacked([info]))

    def trajectory(self, params: Params, observed: jax.Array, count: int) -> jax.Array:
        theta = self.theta_of(params, observed)
        start = jnp.zeros_like(theta[1])

        def advance(state: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            state = self.euler(theta, state)
            return state, state

        return jnp.concatenate([start[None], lax.scan(advance, start, None, length=count)[1]])

    def own_energy(self, params: Params, observed: jax.Array, state: jax.Array) -> jax.Array:
        external = jnp.concatenate([observed, jnp.zeros_like(state)])
        return energy(
            self.weights(params),
            jnp.concatenate([observed, state]),
            external,
            time_constant=self.time_constant,
            gain=self.gain,
        )


def energy(
    weights: jax.Array,
    state: jax.Array,
    external: jax.Array | float = 0.0,
    *,
    time_constant: float = 1.0,
    gain: float = 0.5,
) -> jax.Array:
    """The Lyapunov function of equation 19: `dE/dt = -sum_i b x_i (1 - x_i) (dh_i/dt)^2 <= 0`.

        E = -1/2 sum_ij w_ij x_i x_j + sum_i (1/a integral_0^{x_i} g(x) dx - I_i x_i)

    Here `g` is the inverse of the whole activation `h -> sigmoid(b h)`, so that the integral is
    `(x log x + (1 - x) log(1 - x)) / b`. (The paper writes the inverse of the sigmoid; without the
    factor `1 / b` the energy would rise.)

    Args:
      weights: `[neurons, neurons]`, symmetric and with a diagonal of zeros.
      state: h, of all neurons.
      external: I, of all neurons.
      time_constant, gain: a and b.
    """
    x = jax.nn.sigmoid(gain * state)
    entropy = x * jax.nn.log_sigmoid(gain * state) + (1 - x) * jax.nn.log_sigmoid(-gain * state)
    return -0.5 * x @ weights @ x + jnp.sum(entropy / (time_constant * gain) - external * x)


def descent_step(weights: jax.Array, *, time_constant: float = 1.0, gain: float = 0.5) -> jax.Array:
    """The longest step of Euler's method with which the energy provably never rises.

    In continuous time it never does. All neurons at once in steps of `dt` descend by mirror on E,
    and with `lowest` the least eigenvalue of the weights between the neurons that move,

        E(next) - E <= -1/2 |x_next - x|^2 (4 / (a b) (2 a / dt - 1) + lowest)   for dt <= a,

    which is not positive for `dt <= a min(1, 2 / (1 - a b lowest / 4))`. The full step `dt = a`
    is safe while `lowest >= -4 / (a b)`, which is -8 with the paper's constants.

    Args:
      weights: between the neurons that move, symmetric.
      time_constant, gain: a and b.
    """
    lowest = jnp.minimum(jnp.linalg.eigvalsh(weights)[0], 0)
    return time_constant * jnp.minimum(1.0, 2 / (1 - time_constant * gain * lowest / 4))


def symmetric(matrix: jax.Array) -> jax.Array:
    """A matrix plus its transpose, with a diagonal of zeros."""
    return jnp.where(jnp.eye(len(matrix), dtype=bool), 0, matrix + matrix.T)
