"""The commands of the static website: build, serve, check, publish."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.shell import find_workspace, open_store, say

if TYPE_CHECKING:
    from harness.publish import Built
    from harness.workspace import Workspace

site_app = typer.Typer(no_args_is_help=True, help="The static website: build, serve, check, publish.")

OutOption = Annotated[str, typer.Option("--out", help="Folder of the site; default build/site.")]


def _folder(workspace: Workspace, out: str) -> Path:
    return Path(out) if out else workspace.build / "site"


def _build(workspace: Workspace, folder: Path) -> Built:
    from harness.preflight import threads
    from harness.publish import build_site
    from harness.siteworker import look_seldom_for_garbage

    look_seldom_for_garbage()
    return build_site(workspace, open_store(workspace), folder, threads())


@site_app.command("build")
def site_build(out: OutOption = "") -> None:
    """Bring the static pages up to date: only what depends on something new is made again."""
    workspace = find_workspace()
    folder = _folder(workspace, out)
    typer.echo(f"{_build(workspace, folder)} in {folder}; open {folder / 'index.html'}")
    gc.freeze()  # the process ends now: going through all that it loaded would take as long as making some pages


@site_app.command("serve")
def site_serve(
    port: Annotated[int, typer.Option("--port", help="0 takes a free one.", min=0, max=65535)] = 8000,
    out: OutOption = "",
) -> None:
    """Show the site on this machine; build it again and reload the browser when something changes. Ctrl-C ends it."""
    import subprocess

    from harness.serve import running, watch
    from harness.workspace import bundled

    workspace = find_workspace()
    folder = _folder(workspace, out).resolve()
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "site",
        "build",
        "--out",
        str(folder),
    ]

    def build() -> int:
        return subprocess.run(command, cwd=workspace.root, stdout=sys.stderr, check=False).returncode

    try:
        with running(folder, port) as server:
            if code := build():
                raise typer.Exit(code)
            typer.echo(f"{server.address} shows {folder}; Ctrl-C ends it")
            sys.stdout.flush()
            watched = [
                *workspace.leaderboards,
                *workspace.submissions,
                workspace.site_sources,
                bundled() / "harness",
            ]
            watch(watched, build, server, wait=time.sleep)
    except KeyboardInterrupt:
        say("stopped")


@site_app.command("check")
def site_check(
    records: Annotated[
        list[Path] | None, typer.Argument(help="Records that are new: they must be of the boards' versions.")
    ] = None,
    out: OutOption = "",
) -> None:
    """Check the records against their boards, and the built site where there is one; one line a finding."""
    from harness.recordcheck import check_records
    from harness.sitecheck import check_site

    workspace = find_workspace()
    folder = _folder(workspace, out)
    found, count = check_records(workspace, records or ())
    said = [f"{count} record{'' if count == 1 else 's'}"]
    if out or folder.exists():
        more, files = check_site(folder)
        found += more
        said.append(f"{files} files of {folder}")
    for finding in found:
        typer.echo(str(finding))
    say(f"checked {' and '.join(said)}: {len(found) or 'no'} finding{'' if len(found) == 1 else 's'}")
    if found:
        raise typer.Exit(1)


@site_app.command("publish")
def site_publish(
    branch: Annotated[
        str, typer.Option("--branch", help="A branch that has the site and nothing else.")
    ] = "",
    folder: Annotated[str, typer.Option("--folder", help="A folder in place of a branch.")] = "",
    new: Annotated[bool, typer.Option("--new", help="Make the branch, without a history.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Push the branch, too.")] = False,
    remote: Annotated[str, typer.Option("--remote", help="Where to push to.")] = "origin",
    repository: Annotated[
        str, typer.Option("--repository", help="Whose branch; default: the workspace's.")
    ] = "",
    allow_dirty: Annotated[
        bool, typer.Option("--allow-dirty", help="Also with sources that no commit has.")
    ] = False,
    out: OutOption = "",
) -> None:
    """Build the site, check its links, and bring it to a branch or a folder, whole or not at all."""
    from harness import deploy
    from harness.errors import InputError
    from harness.sitecheck import check_site

    if bool(branch) == bool(folder):
        raise InputError("give --branch or --folder, one of them", "", "for instance --branch gh-pages")
    workspace = find_workspace()
    git = deploy.repository(Path(repository) if repository else workspace.root) if branch else None
    if (changed := deploy.dirty(workspace.root)) and git is not None and not allow_dirty:
        raise InputError(
            f"{changed[0]}{f' and {len(changed) - 1} more' if len(changed) > 1 else ''}: no commit has this",
            "a published site names the commit that it was made from", "commit it, or add --allow-dirty",
        )  # fmt: skip
    site = _folder(workspace, out)
    built = _build(workspace, site)
    found, _ = check_site(site)
    for finding in found:
        typer.echo(str(finding))
    if found:
        raise typer.Exit(1)
    if git is None:
        done = deploy.to_folder(site, Path(folder))
    else:
        source = deploy.source_of(workspace.root) + (" with changes that no commit has" if changed else "")
        counts = [(len(list((site / kind).glob("*.html"))), kind) for kind in ("boards", "methods", "runs")]
        message = deploy.message_of(source, [*counts, (built.files, "files")])
        done = deploy.to_branch(site, git, branch, message, new=new, push=push, remote=remote)
    what = f"commit {done.commit[:12]}" if done.commit else f"{done.files} files"
    typer.echo(
        f"{done.where}: {what}" + ("" if done.changed else ", nothing new") + (" (pushed)" if push else "")
    )
