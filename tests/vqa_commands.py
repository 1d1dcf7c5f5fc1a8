"""Stands for tools/vqa_train.py and tools/vqa_evaluate.py: their files, without a model, in no time."""

import json
import os
import sys
import time
from pathlib import Path

SOFT_LOSES = 0.5  # in NLL


def train(opt):
    """Metrics and checkpoints; the second step validates best. PAUSE: seconds a step."""
    model, steps = opt["save_model"], int(opt["train_steps"])
    found = [int(path.stem.rpartition("_")[2]) for path in Path(model).parent.glob("model_step_*.pt")]
    first = max(found, default=0)
    print(f"from step {first}", flush=True)
    for step in range(first + 1, steps + 1):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        with open(f"{model}.metrics.jsonl", "a", encoding="utf-8") as file:
            for part in ("train", "valid"):
                ppl = 4.0 + abs(step - 2)
                file.write(json.dumps({"part": part, "step": step, "nll": 1.0, "ppl": ppl}) + "\n")
        Path(f"{model}_step_{step}.pt").write_text(json.dumps(opt), "utf-8")


def evaluate(opt):
    """Numbers that follow from the seed and the attention that the model was trained with."""
    trained = json.loads(Path(opt["model"]).read_text("utf-8"))
    attention, nll = trained["attention"], 1 + int(trained["seed"]) / 4
    natural = "soft" if attention == "soft" else "exact"
    modes = ["exact", "soft", *(f"kmax{k}" for k in opt["kmax"].split() if k != "0")]
    variational = attention == "variational"
    result = {
        "model": opt["model"], "attention": attention, "natural": natural,
        "nll": {mode: nll + SOFT_LOSES * (mode == "soft") for mode in modes},
        "accuracy": {mode: 40 + 10 * nll for mode in modes}, "accuracy_by_type": {"yes/no": 75.0},
        "elbo": -nll if variational else None, "kl": 0.5 if variational else None,
        "prior_entropy": 1.0, "posterior_entropy": None, "exact_posterior_entropy": 0.5,
    }  # fmt: skip
    Path(opt["json"]).write_text(json.dumps({"models": [result], "part": opt["part"]}), "utf-8")


def options(words):
    """Words of a command line by name; a flag is an empty string."""
    parts = " ".join(words).split(" -")
    return {name: value for name, _, value in (part.lstrip("-").partition(" ") for part in parts)}


if __name__ == "__main__":
    opt = options(sys.argv[1:])
    (train if "save_model" in opt else evaluate)(opt)
