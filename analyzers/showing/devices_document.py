"""The devices of a trace as a table: all of a few, the slowest and the fastest of many."""

from __future__ import annotations

from analyzers.comparing.devices import DeviceTime, Spread, device_spread
from analyzers.showing.format import estimate_us, microseconds
from analyzers.showing.tables import Cell, Column, Table, cells
from analyzers.trace import Trace

_ENDS = 3
"""How many of the slowest, and how many of the fastest, of many devices are listed."""


def device_table(trace: Trace) -> Table | None:
    """Return the table of self time by device, None where there is one device only."""
    spread = device_spread(trace)
    if len(spread.devices) < 2:
        return None
    rows = [_row(spread, device) for device in spread.devices]
    if len(rows) > 2 * _ENDS:
        gap = cells(f"… {len(rows) - 2 * _ENDS} more (--json has all)", "", "", "")
        rows = [*rows[:_ENDS], gap, *rows[-_ENDS:]]
    slowest = spread.devices[0]
    return Table(
        f"Self time per step by device: slowest of {len(spread.devices)} is {slowest.name}, "
        f"{spread.relative(slowest):.2f}× the median device",
        (
            Column("device", numeric=False),
            Column("steps"),
            Column("µs: median (min–max)"),
            Column("× median device"),
        ),
        (*rows, cells("median device", "", microseconds(spread.median_ps), "")),
        total_rows=1,
    )


def _row(spread: Spread, device: DeviceTime) -> tuple[Cell, ...]:
    found = device.estimate
    return cells(device.name, str(found.samples), estimate_us(found), f"{spread.relative(device):.2f}")
