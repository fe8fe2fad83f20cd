"""The sorts of whole workloads after the TPU compiler had its say, for a TPU that is not there."""

import pytest

from tests.benchmarks.surviving_sorts import count

LAYERS, CHUNKS = 2, 4


@pytest.mark.tpu
def test_caching_empties_the_chunk_loops_on_tpu7x():
    found = {variant: count("tpu7x:2x2x1", variant)[variant] for variant in ("ring/recompute", "ring/cached")}
    assert not any(row["unknown"] for row in found.values())
    # Per chunk and layer the backward inverts the permutation and partitions by validity: two argsorts.
    assert found["ring/recompute"]["in_chunk_loops"] == 2 * LAYERS * CHUNKS
    assert found["ring/cached"]["in_chunk_loops"] == 0
    # One set of routing sorts per layer: the router's top-k, by expert, the inverse, the validity mask.
    assert found["ring/cached"]["passes"]["forward"] == 4 * LAYERS
    assert found["ring/cached"]["passes"]["recompute"] == 0


@pytest.mark.tpu
def test_what_a_scatter_takes_away_on_v6e_in_the_backward_alone_and_everywhere():
    found = {
        variant: count("v6e:2x2", f"permute/{variant}")[f"permute/{variant}"]["passes"]
        for variant in ("gather", "gather+backward-scatter", "gather+scatter")
    }
    # The dispatch's backward inverts what the un-permute has inverted: as argsorts the two are one. In the backward
    # alone a scatter therefore saves the combine's inverse only; beside it stands what the compiler adds there, the
    # sort of the indices of the router's scatter-add.
    assert found["gather"] == {"forward": 3 * LAYERS, "recompute": 3 * LAYERS, "backward": 2 * LAYERS}
    assert found["gather+backward-scatter"] == found["gather"] | {"backward": LAYERS}
    assert found["gather+scatter"] == {"forward": 2 * LAYERS, "recompute": 2 * LAYERS, "backward": LAYERS}
