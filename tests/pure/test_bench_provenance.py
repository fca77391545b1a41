"""A result names the commit that measured it: from the checkout, or from a file that came with the tree."""

from __future__ import annotations

import subprocess

from glm53ctl.bench.provenance import commit


def test_a_checkout_says_its_commit_and_whether_files_differ(tmp_path):
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "one")
    found = commit(tmp_path)
    assert found is not None
    assert len(found) >= 7
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{found}-dirty"


def test_a_copied_tree_may_bring_its_commit_in_a_file(tmp_path):
    assert commit(tmp_path) is None
    (tmp_path / ".commit").write_text("76a1441\n")
    assert commit(tmp_path) == "76a1441"
