"""The adapter to MaxText, on stand-ins that have the signatures and return values of its releases."""

import sys
from types import ModuleType

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from workloads.registry import WorkloadError, build
from workloads.verify import verify

from .cases import small_config

pytestmark = pytest.mark.usefixtures("quick_compile")

CONFIG = small_config(ep=4, num_layers=1, dtype="bfloat16", kernels="maxtext")


def _range(sizes, local_num_experts, ep_name):
    offsets = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes)])
    first = lax.axis_index(ep_name) * local_num_experts
    return offsets[first], offsets[first + local_num_experts]


def _sort(x, experts, num_experts, top_k, ep_name, ep_size, buffer_size):
    """Rows at their place in the sorted order of all shards, or, in a smaller buffer, packed at its front."""
    flat = experts.reshape(-1)
    order = jnp.argsort(flat)
    sizes = (flat[:, None] == jnp.arange(num_experts)).sum(axis=0, dtype=jnp.int32)
    start, end = _range(sizes, num_experts // ep_size, ep_name)
    if buffer_size < flat.size:
        place = start + jnp.arange(buffer_size)
        rows = jnp.where((place < end)[:, None], x[order[jnp.minimum(place, flat.size - 1)] // top_k], 0)
    else:
        place = jnp.arange(flat.size)
        rows = jnp.where(((place >= start) & (place < end))[:, None], x[order // top_k], 0)
    return rows, sizes, jnp.argsort(order), order


def _unsort(rows, sizes, positions, top_k, local_num_experts, ep_name, weights):
    start, end = _range(sizes, local_num_experts, ep_name)
    row = positions - start if rows.shape[0] < positions.size else positions
    here = (positions >= start) & (positions < end) & (row < rows.shape[0])
    by_slot = jnp.where(here[:, None], rows[jnp.where(here, row, 0)] * weights[:, None], 0)
    return by_slot.reshape(-1, top_k, rows.shape[1]).sum(axis=1).astype(jnp.bfloat16)


def release(*, hands_on: bool, router_gradient: bool = True, sort_has_buffer: bool = True) -> ModuleType:
    module = ModuleType("maxtext.kernels.ragged.ragged_sort")

    if hands_on:

        def ring_ragged_sort(
            hidden_states_local,
            topk_indices_local,
            num_experts,
            topk,
            ep_name,
            ep_size,
            buffer_size,
            tag_routing_fn=None,
        ):
            result = _sort(hidden_states_local, topk_indices_local, num_experts, topk, ep_name, ep_size, buffer_size)
            return result if tag_routing_fn is None else (result[0], *map(tag_routing_fn, result[1:]))

    elif sort_has_buffer:

        def ring_ragged_sort(
            hidden_states_local, topk_indices_local, num_experts, topk, ep_name, ep_size, buffer_size=None
        ):
            return _sort(hidden_states_local, topk_indices_local, num_experts, topk, ep_name, ep_size, buffer_size)[:3]

    else:

        def ring_ragged_sort(hidden_states_local, topk_indices_local, num_experts, topk, ep_name, ep_size):
            raise AssertionError("never called")

    def ring_ragged_unsort(
        sorted_tokens_local,
        group_sizes_local,
        topk_argsort_revert_indices,
        topk,
        local_num_experts,
        ep_name,
        topk_weights,
        topk_argsort_indices=None,
    ):
        weights = topk_weights if router_gradient else lax.stop_gradient(topk_weights)
        return _unsort(
            sorted_tokens_local,
            group_sizes_local,
            topk_argsort_revert_indices,
            topk,
            local_num_experts,
            ep_name,
            weights,
        )

    module.ring_ragged_sort, module.ring_ragged_unsort = ring_ragged_sort, ring_ragged_unsort
    return module


@pytest.fixture
def install(monkeypatch):
    def put(module: ModuleType, version: str) -> None:
        package = ModuleType("maxtext")
        package.__version__ = version
        monkeypatch.setitem(sys.modules, "maxtext", package)
        for name in ("maxtext.kernels", "maxtext.kernels.ragged"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return put


@pytest.mark.parametrize(("hands_on", "variant", "buffer_factor"), [(False, "recompute", None), (True, "saved", 1.0)])
def test_both_releases_compute_what_the_plain_kernels_compute(install, hands_on, variant, buffer_factor):
    install(release(hands_on=hands_on), "0.2.x")
    config = small_config(ep=4, num_layers=1, dtype="bfloat16", kernels="maxtext", top_k=2, buffer_factor=buffer_factor)
    (report,) = verify("ring", [variant], config, jax.devices(), train_steps=0).reports
    assert report.problems == ()
    assert {comparison.against for comparison in report.comparisons} == {"kernels jax"}


def test_release_without_router_gradient_fails_loudly(install):
    install(release(hands_on=False, router_gradient=False), "0.2.4")
    (report,) = verify("ring", ["recompute"], CONFIG, jax.devices(), train_steps=0).reports
    assert any("gradient of router weights is zero everywhere" in problem for problem in report.problems)


def _refusal(variant: str = "recompute", config=CONFIG) -> str:
    with pytest.raises(WorkloadError) as refusal:
        build("ring", variant, config, "backward", jax.devices())
    return str(refusal.value)


def test_absent_maxtext(monkeypatch):
    monkeypatch.setitem(sys.modules, "maxtext", None)
    assert "needs the package maxtext, which is not installed" in _refusal()


def test_maxtext_that_lacks_something(install):
    install(release(hands_on=False, sort_has_buffer=False), "0.1.0")
    assert "MaxText 0.1.0 is installed, but its ring_ragged_sort takes no buffer_size" in _refusal()


def test_maxtext_that_cannot_be_imported(install, monkeypatch):
    module = release(hands_on=True)
    install(module, "0.2.3")
    monkeypatch.delitem(sys.modules, module.__name__)
    assert "the installed MaxText cannot be used: importing maxtext.kernels.ragged.ragged_sort fails" in _refusal()


def test_release_that_cannot_save_through_remat(install):
    install(release(hands_on=False), "0.2.4")
    assert "MaxText 0.2.4 cannot save its routing through remat" in _refusal("saved")


def test_what_maxtext_cannot_route(install):
    install(release(hands_on=True), "0.2.5")
    assert "only the variants recompute and saved" in _refusal("cached")
    assert "returns bfloat16 whatever" in _refusal(config=small_config(ep=4, kernels="maxtext"))
