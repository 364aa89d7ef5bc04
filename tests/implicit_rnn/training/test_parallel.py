"""How a batch is dealt, and which layouts there are: what needs no device to be told."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from implicit_rnn import training
from implicit_rnn.experiments.options import ConfigError
from implicit_rnn.training import Layout, ParallelSettings
from implicit_rnn.training.dealing import deal, load
from tests.implicit_rnn.experiments.problems import config


@given(st.integers(1, 6), st.data())
def test_shards_get_equal_work(shards: int, data: st.DataObject):
    rounds = data.draw(st.integers(1, 5))
    length = np.array(
        data.draw(st.lists(st.integers(0, 50), min_size=shards * rounds, max_size=shards * rounds))
    )
    order = deal(length, shards)
    assert sorted(order) == list(range(shards * rounds))
    work = length[order].reshape(shards, rounds)
    assert np.ptp(work.sum(axis=1)) <= np.ptp(length)
    longest = np.sort(length)[::-1][:shards]
    assert sorted(work.max(axis=1)) == sorted(longest)


def test_a_process_loads_the_rows_of_its_own_devices():
    asked = []
    length = np.array([3, 1, 2, 4])

    def take(index, time):
        asked.append(list(index))
        return {"number": index}

    split = training.sources.bucketed(length, take, 4)
    mesh = jax.make_mesh((1,), ("data",))
    rows = Layout(mesh).rows
    got = load(split, (np.arange(4), 4), rows, ordered=False)["number"]
    assert asked == [[3, 0, 2, 1]]  # the longest first
    assert got.tolist() == asked[0]
    assert load(split, (np.arange(4), 4), rows, ordered=True)["number"].tolist() == [0, 1, 2, 3]


def test_the_first_rule_that_fits_shards_a_parameter():
    mesh = jax.sharding.AbstractMesh((4, 2), ("data", "model"))
    layout = Layout(mesh, {"table$": ("model", "")})
    params = {"table": jnp.zeros((8, 3)), "table_bias": jnp.zeros(8)}
    assert layout.specs(params) == {"table": P("model", None), "table_bias": P()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"axes": ("data", "data")}, "different names"),
        ({"shape": (2, 4)}, "2 entries for the 1 axes"),
        ({"shape": (0,)}, "numbers of devices, and -1 at most once"),
        ({"rules": {"(": ("data",)}}, "no regular expression"),
        ({"rules": {"table": ("model",)}}, r"a list of axes out of \['data'\]"),
    ],
)
def test_settings_that_make_no_mesh_are_refused(settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        ParallelSettings(**settings)


def test_a_configuration_says_over_which_devices():
    found = config('parallel.axes=["data", "model"]', "parallel.shape=[4, 2]")
    assert found.parallel == ParallelSettings(axes=("data", "model"), shape=(4, 2))
    assert "parallel" not in found.table()  # a run goes on over any
    with pytest.raises(ConfigError, match="key 'shapes' is unknown; did you mean 'shape'"):
        config("parallel.shapes=[4]")
