"""Makes site/static/vega.js, the one script that charts load, from the packages that package-lock.json pins by hash.

::

    cd site/vendor && npm ci --ignore-scripts && python bundle.py

The same packages give the same bytes. Vega's own builds are taken as they are; the interpreter, which is published as a
module only, gets the three functions of vega-util that it imports from the build beside it.
"""

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
STATIC = HERE.parent / "static"


def main() -> None:
    """Writes the bundle and the licences of everything in it."""
    lock = json.loads((HERE / "package-lock.json").read_text())["packages"]
    names = sorted(name for name in lock if name and not lock[name].get("dev"))
    pinned = {n: json.loads((HERE / "package.json").read_text())["dependencies"][n]
              for n in ("vega", "vega-lite", "vega-interpreter")}  # fmt: skip
    for name, version in pinned.items():
        assert lock[f"node_modules/{name}"]["version"] == version, f"{name} is not {version}: run npm ci"
    head = ", ".join(f"{name} {version}" for name, version in pinned.items())
    parts = [
        f"/*! {head}; licences in vega-licenses.txt; made by site/vendor/bundle.py */",
        (MODULES / "vega/build/vega.min.js").read_text(),
        (MODULES / "vega-lite/build/vega-lite.min.js").read_text(),
        interpreter((MODULES / "vega-interpreter/build/vega-interpreter.js").read_text()),
    ]
    text = "\n".join(re.sub(r"//# sourceMappingURL=.*", "", part).strip() for part in parts) + "\n"
    (STATIC / "vega.js").write_text(text)
    (STATIC / "vega-licenses.txt").write_text("\n\n".join(filter(None, map(licence, names))) + "\n")


def interpreter(module: str) -> str:
    """The interpreter's module as a plain script that sets `vegaInterpreter`."""
    used = re.search(r"import \{([^}]*)\} from 'vega-util';", module)
    made = re.search(r"export \{ (\w+) as expressionInterpreter \};", module)
    assert used and made, "the interpreter's imports or exports have changed"
    body = module.replace(used[0], "").replace(made[0], "")
    return (
        f"(function(){{'use strict';const {{{used[1].strip()}}}=vega;\n{body}\n"
        f"globalThis.vegaInterpreter={{expressionInterpreter:{made[1]}}};}})();"
    )


def licence(path: str) -> str:
    """The licence of an installed package under its name; empty for one that was not installed."""
    folder = HERE / path
    if not (folder / "package.json").is_file():
        return ""
    about = json.loads((folder / "package.json").read_text())
    files = sorted(p for p in folder.iterdir() if p.name.lower().startswith(("licen", "notice")))
    text = "\n\n".join(p.read_text(encoding="utf-8", errors="replace").strip() for p in files)
    return f"{about['name']} {about['version']} ({about.get('license', 'see below')})\n{'=' * 70}\n{text or 'no file'}"


if __name__ == "__main__":
    main()
