"""Bringing a built site to where it is read: a folder, or a branch of a git repository (as GitHub Pages serves them).

A branch is written by `git fast-import`, which takes the files byte for byte: no checkout, no index and no filter of
the repository has a part in it. The branch moves in one step, from the commit that was looked at to the new one; until
then, and when anything fails, it is what it was.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from harness.errors import InputError, StoreError
from harness.site import refuse_foreign, replacing
from harness.siteparts import MARK, is_site, read_parts

NO_JEKYLL = ".nojekyll"
"""Tells GitHub Pages to serve the files as they are, those that begin with `_` too."""
SOURCES = ("leaderboards", "submissions", "site")


@dataclass(frozen=True)
class Published:
    """What came of it: where the site is, the commit (empty for a folder), and whether anything changed."""

    where: str
    commit: str
    changed: bool
    files: int


# --- a folder -------------------------------------------------------------------------------------------------------
def to_folder(site: Path, target: Path) -> Published:
    """Copies a built site to `target`, which it replaces in one step; a folder that is no site is left alone."""
    _need_site(site)
    if target.resolve() == site.resolve() or site.resolve() in target.resolve().parents:
        raise InputError(f"{target} is the built site itself, or in it", "", "choose another folder")
    refuse_foreign(target)
    parts = read_parts(site)
    files = set(_files(site))
    if {path for part in parts.values() for path in part.files} != files:
        raise InputError(f"{site} was changed after it was built", "", "run `uharness site build` again")
    with replacing(target) as draft:
        changed = parts != draft.before
        for name, part in parts.items():
            if not changed:
                draft.parts[name] = part
            elif draft.before.get(name) == part:
                draft.keep(name)
            else:
                draft.add(name, part.key, {path: (site / path).read_bytes() for path in part.files})
    return Published(str(target), "", changed, len(files))


def _need_site(site: Path) -> None:
    if not is_site(site):
        raise InputError(f"{site} is not a built site", "", "run `uharness site build` first")


def _files(site: Path) -> dict[str, Path]:
    """The files of a site by relative path, its list of parts left out."""
    found = {p.relative_to(site).as_posix(): p for p in sorted(site.rglob("*")) if p.is_file()}
    found.pop(MARK, None)
    return found


# --- a branch -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Git:
    """A repository."""

    folder: Path

    def run(self, *arguments: str, check: bool = True, given: IO[bytes] | None = None) -> str:
        """What git prints; its complaint is the error's text."""
        command = ["git", "-C", str(self.folder), *arguments]
        environ = {
            k: v for k, v in os.environ.items() if k not in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE")
        }
        environ |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        done = subprocess.run(
            command, capture_output=True, stdin=given or subprocess.DEVNULL, env=environ, check=False
        )
        if done.returncode and check:
            said = " ".join(done.stderr.decode(errors="replace").split()) or f"exit code {done.returncode}"
            raise StoreError(f"git {arguments[0]} in {self.folder} failed: {said}")
        return done.stdout.decode(errors="replace").strip() if not done.returncode else ""

    def commit_of(self, name: str) -> str:
        """The commit that a ref names; empty where there is none."""
        return self.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", check=False)


def repository(folder: Path) -> Git:
    """The repository that a folder lies in, or is (bare ones too)."""
    if shutil.which("git") is None:
        raise InputError(
            "git is not installed", "a branch is published by git", "install git, or use --folder"
        )
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder", "", "give the folder of a git repository")
    git = Git(folder.resolve())
    if not git.run("rev-parse", "--git-dir", check=False):
        raise InputError(
            f"{folder} is not in a git repository",
            "a branch is published by git",
            "give --repository, or use --folder",
        )
    return git


def dirty(workspace: Path) -> list[str]:
    """Sources of the site that no commit has, as paths; none where the workspace is in no repository."""
    if shutil.which("git") is None or not workspace.is_dir():
        return []
    git = Git(workspace)
    if not git.run("rev-parse", "--is-inside-work-tree", check=False):
        return []
    there = [name for name in SOURCES if (workspace / name).exists()]
    lines = (
        git.run("status", "--porcelain", "--untracked-files=all", "--", *there).splitlines() if there else []
    )
    return [line.strip().partition(" ")[2].strip() for line in lines]


def source_of(workspace: Path) -> str:
    """The commit that the workspace is at, in twelve digits; empty where there is none."""
    if shutil.which("git") is None:
        return ""
    return Git(workspace).commit_of("HEAD")[:12]


def to_branch(
    site: Path,
    git: Git,
    branch: str,
    message: str,
    *,
    new: bool = False,
    push: bool = False,
    remote: str = "origin",
) -> Published:
    """Commits a built site as all that `branch` has, and moves the branch in one step.

    Args:
        site: built.
        git: whose branch.
        branch: an existing one that has a site, or with `new` one that does not exist yet (it starts from nothing).
        message: of the commit.
        new: make the branch.
        push: first to `remote`; if that fails, the branch here stays as it was too.
        remote: where to push to.
    """
    _need_site(site)
    if not git.run("check-ref-format", "--branch", branch, check=False):
        raise InputError(f"{branch!r} cannot be the name of a branch", "", "choose another --branch")
    ref = f"refs/heads/{branch}"
    _refuse_checked_out(git, ref)
    here = git.commit_of(ref)
    parent = _parent(git, ref, branch, here, remote if push else "", new)
    files = _files(site)
    scratch = f"refs/uharness/{uuid.uuid4().hex}"
    try:
        who = _identity(git)
        with tempfile.TemporaryFile() as stream:
            stream.writelines(_stream(scratch, parent, who, message, files))
            stream.seek(0)
            git.run("fast-import", "--quiet", "--done", "--date-format=raw", given=stream)
        commit = git.commit_of(scratch)
        same = parent and git.run("rev-parse", f"{parent}^{{tree}}") == git.run(
            "rev-parse", f"{commit}^{{tree}}"
        )
        if same:
            commit = parent
        if push:
            git.run("push", "--quiet", remote, f"{commit}:{ref}")
        if here != commit:
            git.run("update-ref", "-m", "uharness site publish", ref, commit, here or "0" * len(commit))
    finally:
        git.run("update-ref", "-d", scratch, check=False)
    return Published(f"{branch} of {git.folder}", commit, not same, len(files))


def _refuse_checked_out(git: Git, ref: str) -> None:
    for block in git.run("worktree", "list", "--porcelain").split("\n\n"):
        if f"branch {ref}" in block.splitlines():
            where = block.splitlines()[0].removeprefix("worktree ")
            raise InputError(
                f"branch {ref.removeprefix('refs/heads/')} is checked out in {where}",
                "its files would no longer be those of its commit", "check out another branch there",
            )  # fmt: skip


def _parent(git: Git, ref: str, branch: str, here: str, remote: str, new: bool) -> str:
    """The commit to go on from; empty for a branch that starts from nothing."""
    there = ""
    if remote:
        if remote not in git.run("remote").split():
            raise InputError(
                f"no remote {remote!r}", f"known: {git.run('remote') or 'none'}", "give another --remote"
            )
        told = git.run("ls-remote", remote, ref).split()
        there = told[0] if told else ""
        if there and not git.commit_of(there):
            git.run("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", remote, ref)
        if here and there and git.run("merge-base", here, there, check=False) not in (here, there):
            raise InputError(
                f"branch {branch} here and on {remote} have gone apart", f"{here[:12]} and {there[:12]}",
                "make them one first",
            )  # fmt: skip
        if here and there and git.run("merge-base", here, there) == there:
            there = here
    parent = there or here
    if not parent and not new:
        names = git.run("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        raise InputError(
            f"no branch {branch!r}", f"known: {', '.join(names[:8]) or 'none'}", "add --new to make it"
        )
    if parent and new:
        raise InputError(f"branch {branch!r} is there already", "", "leave out --new")
    if parent and not git.run("ls-tree", "--name-only", parent, NO_JEKYLL, "index.html"):
        raise InputError(
            f"branch {branch} has files that are no site, and is left alone", "a site has an index.html",
            "choose another branch",
        )  # fmt: skip
    return parent


def _identity(git: Git) -> str:
    who = git.run("var", "GIT_COMMITTER_IDENT", check=False)
    if not who:
        raise InputError(
            "git does not know who commits", "", "set user.name and user.email with `git config`"
        )
    return who


def _stream(ref: str, parent: str, who: str, message: str, files: dict[str, Path]) -> Iterator[bytes]:
    """The commands of one commit for `git fast-import`."""
    text = message.encode()
    yield f"commit {ref}\ncommitter {who}\ndata {len(text)}\n".encode() + text + b"\n"
    if parent:
        yield f"from {parent}\n".encode()
    yield b"deleteall\n"
    for name, content in [(NO_JEKYLL, b""), *((name, path) for name, path in files.items())]:
        data = content if isinstance(content, bytes) else content.read_bytes()
        quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'M 100644 inline "{quoted}"\ndata {len(data)}\n'.encode() + data + b"\n"
    yield b"done\n"


def message_of(source: str, counts: Sequence[tuple[int, str]]) -> str:
    r"""What a commit of a site says: what was built, and from which commit.

    >>> message_of("abc", [(2, "boards"), (9, "runs")])
    'Build the site: 2 boards, 9 runs\n\nMade by uharness site publish from abc.\n'
    """
    what = ", ".join(f"{count} {name}" for count, name in counts)
    origin = f" from {source}" if source else ""
    return f"Build the site: {what}\n\nMade by uharness site publish{origin}.\n"
