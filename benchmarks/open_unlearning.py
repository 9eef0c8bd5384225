"""The TOFU evaluation of a checkout of locuslab/open-unlearning, timed from inside; `evaluate.py` starts it.

It runs in open-unlearning's own environment and so imports nothing of ours. Its evaluator runs as it is, with its
TOFU configuration and with the metrics that the configuration leaves out; only float32 and a processor are asked for.
The working directory holds the rows as a local data set of the name that the configuration asks the hub for. The last
line of output is a JSON object: seconds, rows and padded tokens by kind of work, and the aggregates.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
MORE = ("exact_memorization", "mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus")
"""Metrics beside those of its default TOFU evaluation."""


def configuration(folder: Path, model: str, output: str) -> Any:
    import hydra

    chosen = ["experiment=eval/tofu/default", "task_name=benchmark", f"+eval/tofu_metrics=[{','.join(MORE)}]"]
    with hydra.initialize_config_dir(str(folder / "configs"), version_base=None):
        cfg = hydra.compose("eval.yaml", overrides=chosen)
    settings = {
        "pretrained_model_name_or_path": model,
        "attn_implementation": "sdpa",
        "torch_dtype": "float32",
        "device_map": "cpu",
    }
    for key, value in settings.items():
        cfg.model.model_args[key] = value
    cfg.model.tokenizer_args.pretrained_model_name_or_path = model
    cfg.model.template_args.system_prompt = None
    cfg.eval.tofu.output_dir = output
    return cfg


class Meter:
    """Seconds by kind of work, and the rows and padded tokens that went through the model for likelihoods."""

    def __init__(self) -> None:
        self.seconds = {"likelihoods": 0.0, "generation": 0.0}
        self.rows = self.tokens = 0
        self.kind = "likelihoods"

    def timed(self, evaluate_metric: Any) -> Any:
        """A metric's own function: its data sets are read, and metrics that it needs computed, before it."""

        @functools.wraps(evaluate_metric)
        def run(metric: Any, *args: Any, **named: Any) -> Any:
            self.kind = "generation" if metric.name == "rouge" else "likelihoods"
            start = time.perf_counter()
            result = evaluate_metric(metric, *args, **named)
            self.seconds[self.kind] += time.perf_counter() - start
            return result

        return run

    def count(self, module: Any, args: Any, named: dict[str, Any]) -> None:
        """A hook before each forward."""
        if self.kind == "likelihoods":
            self.rows += len(named["input_ids"])
            self.tokens += named["input_ids"].numel()


def main() -> None:
    if len(sys.argv) == 1:
        print("evaluate.py --open-unlearning FOLDER --python PYTHON starts this")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the checkout")
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", required=True, help="folder for its logs")
    parser.add_argument("--threads", type=int, required=True)
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.folder / "src"))
    import torch
    import transformers
    from evals import get_evaluators  # type: ignore[import-not-found]
    from evals.metrics.base import UnlearningMetric  # type: ignore[import-not-found]
    from model import get_model  # type: ignore[import-not-found]

    torch.set_num_threads(asked.threads)
    cfg = configuration(asked.folder, asked.model, asked.output)
    model, tokenizer = get_model(cfg.model)
    # transformers 5 gives a mapping where 4.45, for which this was written, gives ids
    tokenizer.apply_chat_template = functools.partial(tokenizer.apply_chat_template, return_dict=False)
    with torch.no_grad():
        model(torch.ones((1, 8), dtype=torch.int64))
    meter = Meter()
    UnlearningMetric.evaluate_metric = meter.timed(UnlearningMetric.evaluate_metric)
    model.register_forward_pre_hook(meter.count, with_kwargs=True)
    evaluator = get_evaluators(cfg.eval)["tofu"]
    values = evaluator.evaluate(
        model=model, tokenizer=tokenizer, template_args=cfg.model.template_args, overwrite=True
    )
    result = {
        "seconds": meter.seconds,
        "through": (meter.rows, meter.tokens),
        "values": {name: float(value) for name, value in values.items() if value is not None},
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "batch": cfg.eval.tofu.batch_size,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
