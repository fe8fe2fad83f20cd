"""Ctrl-C that does not get lost.

Python raises KeyboardInterrupt wherever it happens to be. If that is a callback of the garbage collector, such as the
one jax has, it prints a traceback and drops the exception, and a capture would go on as if nobody had asked it to stop.
"""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def noticed_interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if there was one since, even if it was dropped.

    During a garbage collection none is raised; that function does it afterwards. Outside the main thread, where Python
    delivers none, the function does nothing.
    """
    pressed = collecting = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        if not collecting:
            raise KeyboardInterrupt

    def collection_starts(phase: str, info: dict[str, int]) -> None:
        nonlocal collecting
        collecting = collecting or phase == "start"

    def collection_ends(phase: str, info: dict[str, int]) -> None:
        nonlocal collecting
        collecting = collecting and phase != "stop"

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, interrupt)
    # Around all other callbacks: the first to be called at the start, the last at the end.
    gc.callbacks.insert(0, collection_starts)
    gc.callbacks.append(collection_ends)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before or signal.SIG_DFL)
        gc.callbacks.remove(collection_starts)
        gc.callbacks.remove(collection_ends)
