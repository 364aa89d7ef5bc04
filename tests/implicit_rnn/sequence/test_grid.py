"""Four networks over an image."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import implicit_rnn
from implicit_rnn import cells

HEIGHT, WIDTH, FEATURES = 4, 5, 2
FOUR = [cells.rnn(2)] * 4


def example():
    params = implicit_rnn.init_grid(FOUR, jax.random.key(0), FEATURES)
    return params, jax.random.normal(jax.random.key(1), (HEIGHT, WIDTH, FEATURES))


@jax.jit
def run(params, image, size=None):
    return implicit_rnn.grid(FOUR, params, image, size=size)


def by_hand(params, image, size):
    """The four recurrences, cell by cell of the grid, in numpy."""
    (rows, columns), d = size, 2
    result = np.zeros((*image.shape[:2], 4 * d))
    for number, (own, (down, right)) in enumerate(
        zip(params, [(-1, 0), (1, 0), (0, -1), (0, 1)], strict=True)
    ):
        own = jax.tree.map(np.asarray, own)
        order = [(i, j) for i in range(rows) for j in range(columns)]
        part = result[..., number * d : (number + 1) * d]
        for i, j in order if down + right > 0 else order[::-1]:
            a, b = i - down, j - right
            before = part[a, b] if 0 <= a < rows and 0 <= b < columns else np.zeros(d)
            part[i, j] = np.tanh(image[i, j] @ own["input"] + before @ own["recurrent"])
    return result


@pytest.mark.parametrize("size", [(HEIGHT, WIDTH), (2, 3), (1, 1), (0, 3)])
def test_grid_follows_its_recurrences(size):
    params, image = example()
    expected = by_hand(params, np.asarray(image), size)
    past = (np.arange(HEIGHT)[:, None] >= size[0]) | (np.arange(WIDTH) >= size[1])
    garbage = jnp.where(past[..., None], jnp.nan, image)
    np.testing.assert_allclose(run(params, garbage, size), expected, atol=1e-6)
    if size == (HEIGHT, WIDTH):
        np.testing.assert_allclose(run(params, image), expected, atol=1e-6)


def test_padding_changes_no_gradient():
    params, image = example()

    @jax.jit
    @jax.grad
    def gradient(both, size):
        return jnp.sum(jnp.sin(implicit_rnn.grid(FOUR, *both, size=size)))

    padded = gradient((params, image.at[2:].set(jnp.nan).at[:, 3:].set(jnp.inf)), (2, 3))
    weights, inputs = gradient((params, image[:2, :3]), (2, 3))
    inputs = jnp.pad(inputs, ((0, HEIGHT - 2), (0, WIDTH - 3), (0, 0)))
    chex.assert_trees_all_close(padded, (weights, inputs), atol=1e-6)


def test_one_layer_sees_its_row_and_column_and_two_see_the_whole_image():
    params, image = example()
    above = implicit_rnn.init_grid(FOUR, jax.random.key(2), 8)
    i, j = 1, 2

    def seen(layers):
        def output(image):
            for own in layers:
                image = implicit_rnn.grid(FOUR, own, image)
            return jnp.sum(image[i, j])

        return np.any(jax.jit(jax.grad(output))(image) != 0, axis=-1)

    cross = (np.arange(HEIGHT)[:, None] == i) | (np.arange(WIDTH) == j)
    np.testing.assert_array_equal(seen([params]), cross)
    assert np.all(seen([params, above]))


def test_a_batch_of_images_is_a_vmap():
    params, image = example()
    sizes = (jnp.array([4, 2]), jnp.array([3, 5]))
    images = jnp.stack([image, -image])
    batch = jax.jit(jax.vmap(run, (None, 0, 0)))(params, images, sizes)
    for n in range(2):
        alone = run(params, images[n], (sizes[0][n], sizes[1][n]))
        np.testing.assert_allclose(batch[n], alone, atol=1e-6)


def test_bad_grids_are_named():
    params, image = example()
    with pytest.raises(ValueError, match="cells must be four, for up, down, left, right; got 3"):
        implicit_rnn.init_grid(FOUR[:3], jax.random.key(0), FEATURES)
    with pytest.raises(ValueError, match="params must be four"):
        implicit_rnn.grid(FOUR, params[:2], image)
    with pytest.raises(ValueError, match=r"\[height, width, features\]"):
        implicit_rnn.grid(FOUR, params, image[None])
