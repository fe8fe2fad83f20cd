"""The sorts of whole workloads after the TPU compiler had its say, for a TPU that is not there."""

import pytest

from tests.benchmarks.surviving_sorts import count

LAYERS, CHUNKS = 2, 4


@pytest.mark.tpu
@pytest.mark.parametrize("kernels", ["jax", "pallas"])
def test_caching_empties_the_chunk_loops_on_tpu7x(kernels):
    found = {variant: count("tpu7x:2x2x1", variant, kernels)[variant] for variant in ("ring/recompute", "ring/cached")}
    assert not any(row["unknown"] for row in found.values())
    # Per chunk and layer the backward inverts the permutation and partitions by validity: two argsorts.
    assert found["ring/recompute"]["in_chunk_loops"] == 2 * LAYERS * CHUNKS
    assert found["ring/cached"]["in_chunk_loops"] == 0
    # One set of routing sorts per layer: the router's top-k, by expert, the inverse, the validity mask.
    assert found["ring/cached"]["passes"]["forward"] == 4 * LAYERS
    assert found["ring/cached"]["passes"]["recompute"] == 0


@pytest.mark.tpu
def test_a_scatter_takes_the_inverse_argsorts_away_on_v6e():
    found = {
        variant: count("v6e:2x2", variant)[variant]["passes"]
        for variant in ("permute/gather", "permute/gather+scatter")
    }
    assert found["permute/gather"]["forward"] - found["permute/gather+scatter"]["forward"] == LAYERS
