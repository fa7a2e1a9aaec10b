"""Programs are compiled quickly, and kept where a user has caches, for a month."""

import itertools
import os
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tests import compilation
from tests.compilation import EVERYTHING, FAST, FLAGS, FOLDER


@pytest.fixture
def changed(monkeypatch, tmp_path):
    """Start as a process does that has set nothing; return what is told to JAX."""
    for variable in (FOLDER, FLAGS, FAST, *map(str.upper, EVERYTHING)):
        monkeypatch.setenv(variable, "")  # put back afterwards, whatever is set
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = {}
    monkeypatch.setattr(jax.config, "update", made.__setitem__)
    return made


def test_programs_are_kept_in_the_cache_folder_of_the_user(changed, tmp_path):
    compilation.keep_programs()
    path = tmp_path / "hotk" / "jax"
    assert path.is_dir()
    assert os.environ[FOLDER] == str(path)
    assert changed == {"jax_compilation_cache_dir": str(path), **EVERYTHING}


def test_without_a_name_for_it_the_folder_is_below_home(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    expected = Path.home() / ".cache" / "hotk" / "jax"
    assert compilation.folder() == expected


@pytest.mark.parametrize("name", ["/somewhere/else", ""])
def test_a_folder_that_the_environment_names_stays(changed, monkeypatch, name):
    monkeypatch.setenv(FOLDER, name)
    compilation.keep_programs()
    assert changed == {}
    assert os.environ[FOLDER] == name


def test_flags_that_the_environment_names_stay(changed, monkeypatch):
    monkeypatch.setenv(FLAGS, "")
    monkeypatch.setenv(FAST, "0")
    compilation.optimize_little()
    assert changed == {}
    assert (os.environ[FLAGS], os.environ[FAST]) == ("", "0")


def test_xla_optimizes_little(changed):
    compilation.optimize_little()
    assert changed == {"jax_disable_most_optimizations": True}
    assert os.environ[FAST] == "1"


def test_where_nothing_can_be_written_nothing_is_kept(changed, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    compilation.keep_programs()
    assert changed == {}
    assert FOLDER not in os.environ


def test_programs_are_removed_after_thirty_days(changed, tmp_path):
    path = compilation.folder()
    path.mkdir(parents=True)
    day = 24 * 3600.0
    for name, age in {"new": 0, "of this month": 29, "old": 31}.items():
        (path / name).touch()
        os.utime(path / name, times=(time.time() - age * day,) * 2)
    (path / "folder").mkdir()
    os.utime(path / "folder", times=(0.0, 0.0))
    compilation.keep_programs()
    assert {p.name for p in path.iterdir()} == {"new", "of this month", "folder"}


def test_contexts_are_used_ten_times_in_their_thread():
    context = compilation.used_again(itertools.count().__next__)
    assert [context() for _ in range(21)] == [0] * 10 + [1] * 10 + [2]
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(context()))
    thread.start()
    thread.join()
    assert elsewhere == [3]
    with (
        compilation.mlir.make_ir_context()
    ):  # a program is lowered within a rule of another
        assert context() == 4
    assert context() == 2


def test_a_program_reads_the_same_in_every_context():
    """Names are those of its module: nothing of the one before it stays."""
    f = lambda x: jnp.where(x > 0, jnp.cumsum(x), jnp.sort(x)) @ x
    texts = set()
    for _ in range(12):
        jax.clear_caches()
        texts.add(jax.jit(f).lower(jnp.ones(3)).as_text(debug_info=True))
    assert len(texts) == 1
