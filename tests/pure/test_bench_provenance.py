"""A result names the commit that measured it: from the checkout, or from a file that came with the tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from glm53ctl.bench.provenance import commit


def make_checkout(folder: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)

    git("init", "-q")
    (folder / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")


def test_a_checkout_says_its_commit_and_whether_files_differ(tmp_path):
    make_checkout(tmp_path)
    found = commit(tmp_path)
    assert found is not None
    assert len(found) >= 7
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{found}-dirty"


def test_a_copied_tree_may_bring_its_commit_in_a_file(tmp_path):
    assert commit(tmp_path) is None
    (tmp_path / ".commit").write_text("76a1441\n")
    assert commit(tmp_path) == "76a1441"


def test_the_file_counts_where_the_copied_git_folder_is_older_than_the_files(tmp_path):
    make_checkout(tmp_path)
    (tmp_path / "file").write_text("of a later commit")
    (tmp_path / ".commit").write_text("c1c8243\n")
    assert commit(tmp_path) == "c1c8243"
    (tmp_path / ".commit").write_text("\n")
    found = commit(tmp_path)
    assert found is not None
    assert found.endswith("-dirty"), "an empty file says nothing"


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"76a1441-dirty\r\n", "76a1441-dirty"),
        (b"76a1441\nand more\n" * 1000, "76a1441"),
        (b"a" * 64, "a" * 64),
        (b"a" * 65, None),
        (b"a" * 1_000_000, None),
        (b"\x7fELF\x00\xff\xfe", None),
        (b"76a1441 of main\n", None),
        (b"<script>\n", None),
        ("76a14é1\n".encode(), None),
        (b"\n76a1441\n", None),
    ],
)
def test_only_a_first_line_that_is_a_commit_counts(tmp_path, content, found):
    (tmp_path / ".commit").write_bytes(content)
    assert commit(tmp_path) == found


def test_a_folder_of_that_name_says_nothing(tmp_path):
    (tmp_path / ".commit").mkdir()
    assert commit(tmp_path) is None
