"""The logger `hotk`: what is compiled, and how long that takes."""

import logging
import threading
import time
from collections.abc import Mapping

from hotk._core import ClosedJaxpr, Function, equations, function_name


_LOGGER = logging.getLogger("hotk")


def is_logged() -> bool:
    """Whether somebody reads these lines, which are of the level INFO."""
    return _LOGGER.isEnabledFor(logging.INFO)


def log_traced(
    call: str, f: Function, seconds: Mapping[str, float], closed: ClosedJaxpr
) -> None:
    """Log that a program is traced, before the compiler takes its time."""
    if is_logged():
        _LOGGER.info(
            "`%s` of `%s`: traced in %.2f s, %d equations; compiling",
            call,
            function_name(f),
            seconds.get("trace", 0.0),
            len(equations(closed.jaxpr)),
        )


def log_compiled(call: str, f: Function, seconds: Mapping[str, float]) -> None:
    """Log what the compiler took."""
    if is_logged():
        _LOGGER.info(
            "`%s` of `%s`: lowered in %.2f s, compiled in %.2f s",
            call,
            function_name(f),
            seconds["lower"],
            seconds["compile"],
        )


class FirstCalls(threading.local):
    """The programs of `jitted` that this thread is compiling: JAX does so in a call.

    Attributes:
        begun: Name and start of each, the outer one first.
    """

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []

    def begin(self, function: Function) -> None:
        """Log that a function of hotk is traced, and compiled after that."""
        if is_logged():
            folder = ".".join(getattr(function, "__module__", "").split(".")[:2])
            name = f"`{function_name(function)}` of {folder}"
            self.begun.append((name, time.perf_counter()))
            _LOGGER.info("%s: tracing and compiling", name)

    def end(self, count: int) -> None:
        """Log what a call took that began when `count` were begun before."""
        for name, start in self.begun[count:]:
            took = time.perf_counter() - start
            _LOGGER.info("%s: traced, compiled and run in %.2f s", name, took)
        del self.begun[count:]


FIRST_CALLS = FirstCalls()
