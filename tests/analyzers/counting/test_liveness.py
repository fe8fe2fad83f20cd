"""Which buffers are alive when: against a count moment by moment, and against XLA's own report of a real trace."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers.counting.buffers import Buffer
from analyzers.counting.liveness import LiveBuffer, Peak, _highest, _Values, peak_change
from analyzers.counting.scopes import Pass
from analyzers.trace import load

LIVES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12
)
"""Start, length, bytes, and which piece of memory it lies in."""


@given(LIVES)
def test_the_peak_is_that_of_a_count_moment_by_moment(lives):
    ranges = {(f"i{k}", ()): (start, start + length) for k, (start, length, _, _) in enumerate(lives)}
    sizes = {(f"i{k}", ()): size for k, (_, _, size, _) in enumerate(lives)}
    slots = {(f"i{k}", ()): (slot, 0) for k, (_, _, _, slot) in enumerate(lives)}

    def alive_bytes(at):
        by_slot = {}
        for where, (start, end) in ranges.items():
            if start <= at <= end:
                by_slot[slots[where]] = max(by_slot.get(slots[where], 0), sizes[where])
        return sum(by_slot.values())

    at, size = _highest(ranges, _Values(sizes, slots))
    assert size == alive_bytes(at) == max(map(alive_bytes, range(26)))


def test_a_trace_tells_what_is_alive_at_the_peak_of_its_module(real_traces):
    trace = load(real_traces / "cpu-two-sorts-per-step.xplane.pb")
    # By hand from the simulation's events: as the dot in the loop's body writes its 4096 × 256 float32, the broadcast
    # before it, as big, is not freed yet; beside them one half of the sort's result and the loop's counter.
    sizes = [live.buffer.size_bytes for live in trace.peak.alive]
    assert sizes == [4 << 20, 4 << 20, 16 << 10, 4]
    assert trace.peak.size_bytes == sum(sizes) <= trace.buffers.temp_bytes
    assert trace.peak.pass_ is Pass.BACKWARD
    assert not trace.peak.with_arguments


def buffer(name, size=1024, shape="f32[256]"):
    return Buffer(size, shape, name, "add", f"f/{name}", Pass.FORWARD)


def peak(*alive):
    found = tuple(LiveBuffer(b, 0, 9, "a", "z") for b in alive)
    return Peak(sum(b.size_bytes for b in alive), "i", "f/i", Pass.FORWARD, found, True)


@pytest.mark.parametrize("alive", [True, False])
def test_a_removed_buffer_is_told_as_alive_at_the_peak_or_not(alive):
    kept, removed = buffer("kept"), buffer("removed", 4096, "f32[1024]")
    before = peak(kept, removed) if alive else peak(kept)
    found = peak_change(before, peak(kept), (removed,))
    assert found.removed_alive == ((removed,) if alive else ())
    assert found.only_a == ((removed,) if alive else ())
    assert (found.a_bytes, found.b_bytes) == (1024 + 4096 * alive, 1024)
