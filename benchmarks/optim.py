"""One step of every optimizer on a Llama's matrices, against AdamW and against the same algorithm in other libraries.

    python benchmarks/optim.py [--sides auto|both] [--hidden 512] [--blocks 2] [--rounds 5] [--threads 1] [--only soap]

The model has the shapes of Llama-3.2-1B with every length divided by 4 (--hidden 512: MLP 2048, key and value maps
128 x 512, vocabulary 8016, tied) and few blocks. A round is 10 steps, so it has one refresh of the bases. The first 10
steps, with eigen-decompositions and compilation, are reported apart, by the clock on the wall. Contestants take turns,
forward and backward. The figure is the median over rounds; only ratios within one run mean anything.

The others (`pip install heavyball pytorch-optimizer`) get the same matrices, decay, betas and refresh period, and their
own AdamW for the rest. Under `--sides auto` they also get the same sides, by max_precond_dim = hidden. A library that
is not installed is left out. pytorch-optimizer's Shampoo has no single-sided form; see `--sides both`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import importlib.metadata
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from harness.optim.sides import sides
from harness.plugins import optimizer_names
from harness.specs import OptimizerSpec

PERIOD, LR, DECAY = 10, 1e-4, 0.01
SAME = {
    "soap": {"betas": (0.95, 0.95), "eps": 1e-8},
    "kl_shampoo": {"betas": (0.9, 0.98), "eps": 1e-8},
    "shampoo_quarter": {"betas": (0.9, 0.98)},
}
Step = Callable[[], None]


@dataclass
class Contestant:
    """One optimizer on a model of its own; `whose` is `ours` or a library."""

    family: str
    whose: str
    model: nn.Module
    step: Step
    state: Callable[[], Any]
    steps: int = PERIOD
    first_s: float = 0.0
    rounds_s: list[float] = field(default_factory=list)

    def round(self, gradients: list[list[Tensor]]) -> float:
        """Seconds per step; giving the gradients is not timed. With one thread, it is seconds of this process."""
        now = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        seconds = 0.0
        for k in range(self.steps):
            for p, g in zip(self.model.parameters(), gradients[k % len(gradients)], strict=True):
                p.grad = g.clone()
            started = now()
            self.step()
            seconds += now() - started
        return seconds / self.steps

    @property
    def ms(self) -> float:
        """Milliseconds per step, median over rounds."""
        return 1e3 * statistics.median(self.rounds_s)


def llama(hidden: int, blocks: int) -> nn.Module:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=8016, hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=blocks,
        num_attention_heads=8, num_key_value_heads=2, tie_word_embeddings=True,
    ))  # fmt: skip


def ours(family: str, model: nn.Module, side: str) -> tuple[Step, Callable[[], Any]]:
    module = importlib.import_module(f"harness.optim.{family}")
    options: dict[str, Any] = dict(SAME.get(family, {}))
    if "sides" in module.Options.model_fields:
        options["sides"] = side
    optimizer = module.build(OptimizerSpec(name=family, lr=LR, weight_decay=DECAY, options=options), model)
    if family != "sophia":
        return optimizer.step, optimizer.state_dict

    def step() -> None:
        if optimizer.wants_curvature:
            optimizer.update_curvature(1000)
        optimizer.step()

    return step, optimizer.state_dict


def split(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Matrices, and what AdamW steps."""
    rule = sides(model)
    named = list(model.named_parameters())
    return [p for n, p in named if not rule[n].adamw], [p for n, p in named if rule[n].adamw]


def heavyball(family: str, model: nn.Module, most: int) -> list[torch.optim.Optimizer] | None:
    import heavyball as library

    matrices, rest = split(model)
    usual = {"lr": LR, "weight_decay": DECAY}
    eigen = {
        "precondition_frequency": PERIOD, "max_precond_dim": most, "merge_dims": False, **usual, **SAME.get(family, {})
    }  # fmt: skip

    def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return library.AdamW(parameters, betas=(0.9, 0.999), **usual)

    if family == "adamw":
        return [adamw(model.parameters())]
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "soap": lambda: library.SOAP(matrices, shampoo_beta=0.95, **eigen),
        "kl_shampoo": lambda: library.KLShampoo(matrices, shampoo_beta=0.98, **eigen),
        "muon": lambda: library.Muon(matrices, betas=(0.95, 0.99), **usual),
    }
    return [makers[family](), adamw(rest)] if family in makers else None


def pytorch_optimizer(family: str, model: nn.Module, most: int) -> list[torch.optim.Optimizer] | None:
    import pytorch_optimizer as library

    matrices, rest = split(model)
    usual = {"lr": LR, "weight_decay": DECAY}

    def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return library.AdamW(parameters, betas=(0.9, 0.999), **usual)

    if family == "adamw":
        return [adamw(model.parameters())]
    if family == "shampoo_quarter" and most < max(max(p.shape) for p in matrices):
        return None
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "soap": lambda: library.SOAP(
            matrices, precondition_frequency=PERIOD, max_precondition_dim=most, merge_dims=False,
            **usual, **SAME["soap"],
        ),
        "shampoo_quarter": lambda: library.Shampoo(
            matrices, momentum=0.9, preconditioning_compute_steps=PERIOD, weight_decouple=True, **usual
        ),
        "muon": lambda: library.Muon([{"params": matrices, "use_muon": True}], momentum=0.95, **usual),
    }  # fmt: skip
    return [makers[family](), adamw(rest)] if family in makers else None


def sophia_of_pytorch_optimizer(model: nn.Module) -> tuple[Step, Callable[[], Any]]:
    """SophiaH with the curvature handed in every 10 steps, as ours gets it."""
    import pytorch_optimizer as library

    optimizer = library.SophiaH(model.parameters(), lr=LR, weight_decay=DECAY, update_period=10**9)
    count = [0]

    def step() -> None:
        if count[0] % PERIOD == 0:
            optimizer.step(hessian=[p.grad * p.grad for p in model.parameters()])
        else:
            optimizer.step()
        count[0] += 1

    return step, optimizer.state_dict


def contestants(chosen: argparse.Namespace) -> tuple[list[Contestant], list[str]]:
    """Everybody who can take part, and what is missing."""
    found, missing = [], []
    most = chosen.hidden if chosen.sides == "auto" else 10000
    families = [n for n in optimizer_names() if n != "klshampoo" and (not chosen.only or n in chosen.only)]
    for family in dict.fromkeys(["adamw", *families]):
        model = llama(chosen.hidden, chosen.blocks)
        steps = 1 if family == "spectral_power" else PERIOD
        found.append(Contestant(family, "ours", model, *ours(family, model, chosen.sides), steps))
        for library, maker in (("heavyball", heavyball), ("pytorch-optimizer", pytorch_optimizer)):
            model = llama(chosen.hidden, chosen.blocks)
            try:
                if (family, library) == ("sophia", "pytorch-optimizer"):
                    found.append(Contestant(family, library, model, *sophia_of_pytorch_optimizer(model)))
                    continue
                made = maker(family, model, most)
            except ImportError:
                missing.append(f"{library}: not installed")
                continue
            if made is not None:
                found.append(Contestant(family, library, model, together(made), states(made)))
    return found, sorted(set(missing))


def together(optimizers: list[torch.optim.Optimizer]) -> Step:
    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()

    return step


def states(optimizers: list[torch.optim.Optimizer]) -> Callable[[], Any]:
    return lambda: [optimizer.state_dict() for optimizer in optimizers]


def mebibytes(value: Any) -> float:
    """Size of all tensors in nested containers; each storage counts once."""
    storages: dict[int, int] = {}

    def walk(x: Any) -> None:
        if isinstance(x, Tensor):
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        elif isinstance(x, dict):
            for part in x.values():
                walk(part)
        elif isinstance(x, list | tuple):
            for part in x:
                walk(part)

    walk(value)
    return sum(storages.values()) / 2**20


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sides", choices=["auto", "both"], default="auto")
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    warnings.simplefilter("ignore")
    field_, missing = contestants(chosen)
    generator = torch.Generator().manual_seed(1)
    gradients = [
        [1e-2 * torch.randn(p.shape, generator=generator) for p in field_[0].model.parameters()]
        for _ in range(3)
    ]
    loads = [os.getloadavg()[0]]
    for one in field_:
        started = time.perf_counter()
        one.round(gradients)
        one.first_s = time.perf_counter() - started
        one.round(gradients)
    for number in range(chosen.rounds):
        for one in field_ if number % 2 == 0 else reversed(field_):
            one.rounds_s.append(one.round(gradients))
    loads.append(os.getloadavg()[0])
    report(field_, missing, chosen, loads)


def report(
    field_: list[Contestant], missing: list[str], chosen: argparse.Namespace, loads: list[float]
) -> None:
    by = {(one.family, one.whose): one for one in field_}
    numel = sum(p.numel() for p in field_[0].model.parameters())
    versions = []
    for library in ("torch", "heavyball", "pytorch-optimizer"):
        try:
            versions.append(f"{library} {importlib.metadata.version(library)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{library} absent")
    print(f"{datetime.date.today()}, {cpu()}, {chosen.threads} thread(s), {', '.join(versions)}")
    print(f"hidden {chosen.hidden}, {chosen.blocks} blocks, {numel / 1e6:.1f} M parameters, sides {chosen.sides}, "
          f"median of {chosen.rounds} rounds of {PERIOD} steps, load {loads[0]:.1f} to {loads[1]:.1f}")  # fmt: skip
    print()
    print(
        "| optimizer | whose | ms a step | lowest-highest | x AdamW | ours / theirs | state, MiB | first 10 steps, s |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    base = by["adamw", "ours"]
    for one in field_:
        mine = by[one.family, "ours"]
        ratio = "" if one is mine else f"{mine.ms / one.ms:.2f}"
        spread = f"{1e3 * min(one.rounds_s):.0f}-{1e3 * max(one.rounds_s):.0f}"
        print(f"| {one.family} | {one.whose} | {one.ms:.1f} | {spread} | {one.ms / base.ms:.1f} | {ratio} | "
              f"{mebibytes(one.state()):.0f} | {one.first_s:.1f} |")  # fmt: skip
    for line in missing:
        print(f"\nmissing: {line}")


if __name__ == "__main__":
    main()
