"""All stories: importing a module of them adds them to the list."""

from . import (  # noqa: F401
    stories_arrays,
    stories_classes,
    stories_effects,
    stories_functions,
    stories_hidden,
    stories_kinds,
    stories_modules,
    stories_objects,
    stories_pinned,
    stories_reads,
    stories_settings,
    stories_states,
    stories_values,
)
from .telling import STORIES as STORIES
