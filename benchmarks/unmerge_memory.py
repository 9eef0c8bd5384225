"""Peak memory of UNMERGE's one pass: streamed second moments beside keeping every layer's inputs.

Both passes are made over the same rows by a process of their own; what is compared is the peak of its memory above what
it had before the pass, and the second moments must be equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
ROWS = (200, 400, 800)


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def measure(kind: str, rows: int) -> None:
    import torch

    from harness import scoring
    from harness.edits.layers import editable
    from harness.edits.moments import Gathering, Seen, gather
    from harness.mini.world import data_folder
    from harness.models import load, resolve
    from harness.plugins import load_task
    from harness.specs import TaskRef, Template

    torch.set_num_threads(1)
    task = load_task(TaskRef(name="tofu", split="forget10", data=str(data_folder("tofu"))), Template())
    case, loaded = task.case("forget10", 0), load(resolve("mini:tofu-full"))
    every = [*case.forget, *case.retain][:rows]
    layers = editable(loaded.model)

    def batches():
        for at in range(0, len(every), 32):
            inputs = scoring.collate(every[at : at + 32], loaded.encoder)
            yield Seen("forget", inputs, torch.zeros(0, len(inputs), dtype=torch.bool))

    def forward(inputs):
        return scoring.forward(loaded.model, inputs)

    with torch.no_grad():
        forward(scoring.collate(every[:1], loaded.encoder))
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_mib()
    if kind == "streamed":
        found = gather(loaded.model, layers, batches(), forward, Gathering())
        traces = {name: float(m.second["forget"].trace()) for name, m in found.items()}
    else:
        kept: dict[str, list[torch.Tensor]] = {layer.name: [] for layer in layers}
        mask: list[torch.Tensor] = []
        for layer in layers:
            layer.module.register_forward_pre_hook(
                lambda _m, x, at=layer.name: kept[at].append(x[0][mask[-1]])
            )
        with torch.no_grad():
            for seen in batches():
                mask.append(seen.inputs.attention)
                forward(seen.inputs)
        traces = {}
        for name, parts in kept.items():
            x = torch.cat(parts).double()
            traces[name] = float((x.T @ x).trace())
    print(json.dumps({"mib": peak_mib() - before, "traces": traces}))


def main() -> None:
    print("rows   streamed MiB   all inputs kept MiB   ratio")
    for rows in ROWS:
        found = {}
        for kind in ("streamed", "kept"):
            done = subprocess.run(
                [sys.executable, __file__, kind, str(rows)], capture_output=True, text=True, check=True
            )
            found[kind] = json.loads(done.stdout)
        a, b = (found[kind]["traces"] for kind in ("streamed", "kept"))
        assert all(abs(a[n] - b[n]) <= 1e-6 * abs(b[n]) for n in b)
        streamed, kept = found["streamed"]["mib"], found["kept"]["mib"]
        print(f"{rows:4}   {streamed:12.1f}   {kept:19.1f}   {streamed / kept:.3f}")


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else main()
