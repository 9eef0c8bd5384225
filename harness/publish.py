"""From the database to a folder of pages: what `uharness site build` does.

A site is made in parts (`pages.content.Part`). A part whose key is that of the last build is taken over; the others are
made, by processes of their own where there are many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import StoreError
from harness.pages.content import Part, Site
from harness.render import parts
from harness.site import Draft, read_static, replacing
from harness.sitecontent import code_hash, collect
from harness.siteparts import Kept
from harness.store import Store
from harness.workspace import Workspace

MANY = 300
"""Parts from which on other processes help."""

Helper = Callable[[Sequence[Part], Draft], Mapping[str, Kept]]

__all__ = ["Built", "build_site", "collect", "parts_of", "swap_in"]


@dataclass(frozen=True)
class Built:
    """What a build did: files and bytes of the site, and parts that were made, taken over, and left out."""

    files: int
    size: int
    made: int
    kept: int
    gone: int

    def __str__(self) -> str:
        changed = f"{self.made} parts made, {self.kept} as before" + (
            f", {self.gone} gone" if self.gone else ""
        )
        return f"{self.files} files, {self.size / 1e6:.1f} MB ({changed})"


def build_site(workspace: Workspace, store: Store, folder: Path, workers: int = 1) -> Built:
    """Brings the site in `folder` up to date with the database, and swaps it in whole.

    Args:
        workspace: whose boards and submissions.
        store: up to date with its files.
        folder: a new one, an empty one, or a site.
        workers: processes that share the work where there is much of it.
    """
    from harness.siteworker import Crew

    with Crew(workspace, store, workers) as crew:
        site = collect(workspace, store, rank=crew.rank)
        inside = folder.resolve().parent == workspace.build.resolve()
        return swap_in(parts_of(workspace, site), folder, crew.make, spare=inside)


def parts_of(workspace: Workspace, site: Site) -> list[Part]:
    """The parts of a workspace's site."""
    sources = workspace.site_sources
    compiled = workspace.build / "templates" / code_hash()
    return parts(site, sources / "templates", read_static(sources / "static"), compiled)


def swap_in(
    wanted: Sequence[Part], folder: Path, helper: Helper | None = None, *, spare: bool = False
) -> Built:
    """Makes the parts that are new or changed, takes the others over, and swaps the site in.

    Args:
        wanted: all parts of the site.
        folder: where it is.
        helper: writes what it can of many parts into a draft's folder, and returns those.
        spare: see `site.replacing`.
    """
    names = [part.name for part in wanted]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise StoreError(f"two parts of the site are called {twice!r}")
    with replacing(folder, spare=spare) as draft:
        stale = [p for p in wanted if p.name not in draft.before or draft.before[p.name].key != p.key]
        gone = set(draft.before) - set(names)
        if not stale and not gone:
            draft.parts.update(draft.before)
            return _told(draft, 0, 0)
        changed = {part.name for part in stale}
        draft.only({part.name for part in wanted} - changed)
        done = helper(stale, draft) if helper is not None and len(stale) >= MANY else {}
        draft.parts.update(done)
        for part in wanted:
            if part.name not in changed:
                draft.keep(part.name)
            elif part.name not in done:
                draft.add(part.name, part.key, part.make())
        return _told(draft, len(stale), len(gone))


def _told(draft: Draft, made: int, gone: int) -> Built:
    files = [size for part in draft.parts.values() for size in part.files.values()]
    return Built(len(files), sum(files), made, len(draft.parts) - made, gone)
