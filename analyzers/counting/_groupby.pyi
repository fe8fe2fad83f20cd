from typing import Any

from numpy.typing import NDArray

Column = NDArray[Any]

def take(table: Column, ids: Column, out: Column) -> None: ...
def sums(ids: Column, values: Column | None, out: Column) -> None: ...
def number(ids: Column, parts: Column | None, width: int, counters: Column, out: Column) -> None: ...
def deal(ids: Column, first: Column, each: Column, counters: Column, out: Column) -> None: ...
def take_away_nested(
    start: Column, duration: Column, op: Column, container: Column, tolerance: int, self: Column
) -> bool: ...
def tally(
    op: Column,
    run: Column,
    execution: Column,
    weight: Column | None,
    duration: Column,
    self: Column,
    first_cell: Column,
    slots: Column,
    group: Column,
    executions: Column,
    durations: Column,
    selves: Column,
) -> None: ...
