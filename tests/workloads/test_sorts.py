"""The sorts that survive CPU compilation, counted by hand per layer, pass and place."""

import re
from collections import Counter

import pytest

from .cases import cached_program

# Per layer. Forward: by expert, its inverse, the validity mask (ring). Recompute: the same without the mask,
# which the output needs and the backward does not. Backward (ring): the combine's inverse and the dispatch's
# mask, hoisted out of the chunk loop by XLA. Backward (permute): the combine's inverse; the dispatch's is the
# same as the one that remat recomputes and is merged with it.
EXPECTED = {
    ("ring", "recompute"): {"forward": 3, "recompute": 2, "backward": 2},
    ("ring", "cached"): {"forward": 3},
    ("permute", "repeat"): {"forward": 2, "recompute": 2, "backward": 1},
    ("permute", "gather"): {"forward": 2, "recompute": 2, "backward": 1},
    ("permute", "gather+scatter"): {"forward": 1, "recompute": 1},
}


def op_names_of_sorts(hlo: str) -> list[str]:
    lines = re.findall(r"^.* sort\(.*$", hlo, re.MULTILINE)
    return [re.search(r'op_name="([^"]*)"', line).group(1) for line in lines]


def pass_of(op_name: str) -> str:
    if "rematted_computation" in op_name:
        return "recompute"
    return "backward" if "transpose(jvp" in op_name else "forward"


@pytest.mark.parametrize(("workload", "variant"), EXPECTED)
@pytest.mark.parametrize("ep", [1, 8])
def test_sorts_per_layer_and_pass(workload, variant, ep):
    program = cached_program(workload, variant, "backward", ep=ep)
    hlo = program.step.lower(*program.abstract_args).compile().as_text()
    names = op_names_of_sorts(hlo)
    assert Counter(map(pass_of, names)) == EXPECTED[workload, variant]
    assert all("layers/while/body" in name for name in names)
    assert all(re.search("dispatch|combine", name) for name in names)


def test_unrolled_layers_and_chunks_are_named():
    program = cached_program("ring", "recompute", "backward", ep=1, scan_layers=False, scan_chunks=False)
    names = op_names_of_sorts(program.step.lower(*program.abstract_args).compile().as_text())
    found = Counter((re.search(r"layer_\d", name).group(), pass_of(name)) for name in names)
    assert {key: found[key] for key in found if key[1] != "backward"} == {
        ("layer_0", "forward"): 3,
        ("layer_1", "forward"): 3,
        ("layer_0", "recompute"): 2,
        ("layer_1", "recompute"): 2,
    }
    in_chunks = [name for name in names if "validity" in name]
    assert in_chunks
    assert all(re.search(r"chunk_\d", name) for name in in_chunks)


def test_module_is_named_after_workload_and_mode():
    program = cached_program("ring", "cached", "backward", ep=1)
    assert "HloModule jit_ring_backward," in program.step.lower(*program.abstract_args).compile().as_text()
