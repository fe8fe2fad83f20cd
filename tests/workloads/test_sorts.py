"""The sorts that survive CPU compilation, counted by hand per layer, pass and place."""

import re
from collections import Counter

import pytest

from .cases import ALL_VARIANTS, MARKED_VARIANTS, cached_program

pytestmark = pytest.mark.usefixtures("quick_compile")

# Per layer: (forward, recompute, backward). In ring's forward: by expert, its inverse, the validity mask. Recompute
# lacks the mask where each call sorts it, because the output needs that sort and the backward does not. Backward:
# the combine's inverse (unless handed on) and the dispatch's mask (unless cached), hoisted from the chunk loop by XLA.
# permute has no mask; its backward derives the inverse of the combine, while the dispatch's is the same as the one
# that remat recomputes and is merged with it. a2a sorts and inverts on both sides; its backward inverts the sender's
# positions, the receiver's two inversions are the recomputed one, and its inverse's. A scatter is no sort.
EXPECTED = {
    ("permute", "repeat"): (2, 2, 1),
    ("permute", "repeat+scatter"): (1, 1, 0),
    ("permute", "gather"): (2, 2, 1),
    ("permute", "gather+scatter"): (1, 1, 0),
    ("permute", "gather+backward-scatter"): (2, 2, 0),
    ("permute", "gather+reuse"): (2, 2, 0),
    ("permute", "gather+saved"): (2, 0, 0),
    ("permute", "gather+packed"): (1, 1, 0),
    ("permute", "gather+counting"): (0, 0, 0),
    ("ring", "recompute"): (3, 2, 2),
    ("ring", "recompute+scatter"): (2, 1, 1),
    ("ring", "recompute+reuse"): (3, 2, 1),
    ("ring", "recompute+packed"): (2, 1, 1),
    ("ring", "validity"): (3, 3, 0),
    ("ring", "saved"): (3, 0, 1),
    ("ring", "cached"): (3, 0, 0),
    ("ring", "cached+packed"): (3, 0, 0),
    ("ring", "cached+counting"): (1, 0, 0),
    ("a2a", "recompute"): (4, 4, 2),
    ("a2a", "scatter"): (2, 2, 0),
    ("a2a", "packed"): (2, 2, 0),
    ("a2a", "counting"): (0, 0, 0),
    ("a2a", "saved"): (4, 0, 0),
}


def op_names_of_sorts(hlo: str) -> list[str]:
    lines = re.findall(r"^.* sort\(.*$", hlo, re.MULTILINE)
    return [re.search(r'op_name="([^"]*)"', line).group(1) for line in lines]


def pass_of(op_name: str) -> str:
    if "rematted_computation" in op_name:
        return "recompute"
    return "backward" if "transpose(jvp" in op_name else "forward"


def count_sorts(program) -> tuple[int, int, int]:
    passes = Counter(map(pass_of, op_names_of_sorts(program.step.as_text())))
    return passes["forward"], passes["recompute"], passes["backward"]


def test_every_named_variant_has_a_count():
    assert list(EXPECTED) == ALL_VARIANTS


@pytest.mark.parametrize(("workload", "variant"), MARKED_VARIANTS)
def test_sorts_per_layer_and_pass(workload, variant):
    program = cached_program(workload, variant, "backward", ep=4)
    assert count_sorts(program) == EXPECTED[workload, variant]
    names = op_names_of_sorts(program.step.as_text())
    assert all("layers/while/body" in name for name in names)
    assert all(re.search("dispatch|combine", name) for name in names)


@pytest.mark.parametrize("ep", [1, 8])
@pytest.mark.parametrize(("workload", "variant"), [("ring", "recompute"), ("ring", "cached")])
def test_sorts_do_not_depend_on_the_number_of_devices(workload, variant, ep):
    program = cached_program(workload, variant, "backward", ep=ep)
    assert count_sorts(program) == EXPECTED[workload, variant]


def test_unrolled_layers_and_chunks_are_named():
    program = cached_program("ring", "recompute", "backward", ep=1, scan_layers=False, scan_chunks=False)
    names = op_names_of_sorts(program.step.as_text())
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
    assert "HloModule jit_ring_backward," in program.step.as_text()
