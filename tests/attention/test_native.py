"""C++ compiled at first use: what is kept, and what a damaged or hostile place does to it."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outward.attention import native

SOURCE = 'extern "C" int seven() { return 7; }\n'


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file to compile, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native.library.cache_clear()
    file = tmp_path / "seven.cpp"
    file.write_text(SOURCE)
    yield file
    native.library.cache_clear()


def seven(source: Path) -> int:
    native.library.cache_clear()  # as another process
    library: ctypes.CDLL = native.library(source)
    return int(library.seven())


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "outward").glob("*"))


def test_it_is_compiled_once(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert seven(source) == 7
    (file,) = kept(tmp_path)
    monkeypatch.setattr(native, "_compile", None)
    assert seven(source) == 7
    assert kept(tmp_path) == [file]


def test_another_source_is_another_library(source: Path, tmp_path: Path) -> None:
    assert seven(source) == 7
    source.write_text(SOURCE.replace("7;", "8;"))
    assert seven(source) == 8
    assert len(kept(tmp_path)) == 2


def test_a_damaged_library_is_made_again(source: Path, tmp_path: Path) -> None:
    assert seven(source) == 7
    (file,) = kept(tmp_path)
    file.unlink()  # another inode: the loaded one must stay whole
    file.write_bytes(b"")
    assert seven(source) == 7
    assert kept(tmp_path) == [file]
    assert file.stat().st_size > 0


def test_a_compiler_that_makes_nothing_is_named_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "true")
    with pytest.raises(native.NoCompilerError, match=r"true could not compile seven\.cpp"):
        seven(source)
    assert kept(tmp_path) == []


def test_an_error_in_the_source_is_said(source: Path, tmp_path: Path) -> None:
    source.write_text("int seven(")
    with pytest.raises(native.NoCompilerError, match=r"could not compile seven\.cpp: .*error"):
        seven(source)
    assert kept(tmp_path) == []


def test_without_a_cache_it_is_compiled_for_the_process(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in the way"))
    assert seven(source) == 7
    assert os.listdir(tmp_path / "cache") == [] if (tmp_path / "cache").exists() else True
