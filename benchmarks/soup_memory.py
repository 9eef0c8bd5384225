"""Peak memory of a PerformanceSoup over seven small models: streamed from their files, against all of them in memory.

Each way runs in a process of its own, which says how far its peak lies above what it held with everything imported, in
MiB and in models. Loading one model and writing to its weights, which both ways begin with, is measured likewise:
what is above that is what mixing takes. (A loaded model's weights are its file's pages until they are written to.) The
choice is the shipped one; its judge looks at one weight, so that only the mixing is measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

MODELS = 7
HIDDEN, MLP, BLOCKS, VOCAB = 384, 1152, 10, 16000
ROOT = Path(__file__).parent.parent


def write_models(folder: Path) -> float:
    """Seven children and the original, random, float32; MiB of one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=BLOCKS,
                        num_attention_heads=4, num_key_value_heads=4)  # fmt: skip
    for k in range(MODELS + 1):
        torch.manual_seed(k)
        LlamaForCausalLM(shape).save_pretrained(folder / str(k))
    return (folder / "0" / "model.safetensors").stat().st_size / 2**20


def memory(field: str) -> float:
    """VmRSS (now) or VmHWM (peak) of this process, MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this benchmark reads /proc/self/status, which is Linux's")


def load(folder: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder)


def distance(model: Any) -> float:
    """Of the same order for all, so that every child takes part: all mixes are tied."""
    return 0.5 + 0.0 * float(model.model.norm.weight[0])


def one(folder: Path) -> None:
    for tensor in load(folder / "0").state_dict().values():
        tensor.copy_(tensor.clone())


def streamed(folder: Path) -> None:
    from harness.models import LoadedModel
    from harness.select import Pool

    children = [folder / str(k) for k in range(1, MODELS + 1)]
    pool = Pool(LoadedModel(load(folder / "0"), None), folder / "0", children, lambda m: distance(m.model))
    choice().choose(pool)
    assert len(pool.chosen) == MODELS and len(pool.tried) == 2 * MODELS - 1


def choice() -> Any:
    from harness.plugins import load_submission

    return load_submission("performance_soup", [ROOT / "submissions"]).submission.method


def naive(folder: Path) -> None:
    model = load(folder / "0")
    states = [load(folder / str(k)).state_dict() for k in range(1, MODELS + 1)]
    for members in range(1, MODELS + 1):
        mix = {name: sum(s[name] / members for s in states[:members]) for name in states[0]}
        model.load_state_dict(mix)


def measure(way: str, folder: Path) -> None:
    import transformers.models.llama  # noqa: F401

    import harness.models  # noqa: F401

    choice()
    before = memory("VmRSS")
    {"one": one, "streamed": streamed, "naive": naive}[way](folder)
    print(json.dumps(memory("VmHWM") - before))


def main() -> None:
    if len(sys.argv) == 3:
        measure(sys.argv[1], Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as name:
        size = write_models(Path(name))
        peaks = {}
        for way in ("one", "streamed", "naive"):
            done = subprocess.run(
                [sys.executable, __file__, way, name], capture_output=True, text=True, check=True
            )
            peaks[way] = json.loads(done.stdout.splitlines()[-1])
            more = (peaks[way] - peaks["one"]) / size
            print(
                f"{way:9} peak {peaks[way]:7.1f} MiB = {peaks[way] / size:5.2f} models of {size:.1f} MiB, {more:+.2f}"
            )
    print(f"ratio     naive / streamed = {peaks['naive'] / peaks['streamed']:.2f}, {MODELS} models")


if __name__ == "__main__":
    main()
