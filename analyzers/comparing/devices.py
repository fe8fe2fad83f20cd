"""The devices of one trace against each other: which one is slow, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.comparing.statistics import Estimate, estimate, median
from analyzers.counting.hosts import device_names, self_ps_by_device
from analyzers.trace import Blocks, Trace


@dataclass(frozen=True)
class DeviceTime:
    """Self time per step of one device, in ps: one array per session, one value per step that ran on it."""

    name: str
    self_ps: Blocks

    @cached_property
    def estimate(self) -> Estimate:
        """Return median, smallest and largest over all steps."""
        return estimate(self.self_ps)


@dataclass(frozen=True)
class Spread:
    """All devices that ran steps, the slowest first."""

    devices: tuple[DeviceTime, ...]

    @cached_property
    def median_ps(self) -> float:
        """Return the median over the devices of their medians."""
        return median(np.array([device.estimate.median for device in self.devices]))

    def relative(self, device: DeviceTime) -> float:
        """Return how many times the median device's time this one takes; 1 where nothing takes any."""
        return device.estimate.median / self.median_ps if self.median_ps else 1.0


def device_spread(trace: Trace) -> Spread:
    """Return the time of each device; one that waits in a collective spends that time there, so it counts."""
    samples: dict[str, list[np.ndarray]] = {}
    for number, session in enumerate(trace.sessions):
        names = iter(device_names(session))
        for file in session:
            self_ps = self_ps_by_device(file).astype(np.float64)
            for device in range(len(file.devices)):
                blocks = samples.setdefault(next(names), [])
                blocks += [np.zeros(0)] * (number - len(blocks))
                blocks.append(self_ps[device, file.step_wall_ps[device] >= 0])
    devices = [
        DeviceTime(name, tuple(blocks)) for name, blocks in samples.items() if any(len(block) for block in blocks)
    ]
    return Spread(tuple(sorted(devices, key=lambda device: -device.estimate.median)))
