"""Programs that hotk once got wrong, shrunk."""

from .program import Program


REGRESSIONS: list[Program] = []
