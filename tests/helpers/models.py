"""Small random transformer models, saved as a hub would hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.embed import TASKS

TEXTS = [
    "wing",
    "The lift of a slender wing in supersonic flow depends on its sweep.",
    "heat transfer",
    "Boundary layers on a flat plate become turbulent. " * 3,
    "ภาษาไทย และ emoji 🚀",
    "shock waves,\nmeasured twice",
    "A cone at an angle of attack, a cylinder, and a sphere in a wind tunnel.",
]
_SIZES = dict(  # noqa: C408
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    initializer_range=0.3,
)  # fmt: skip
_DECODER = dict(num_key_value_heads=2, max_position_embeddings=32768, **_SIZES)

# name of the architecture: (model class, config, special tokens by role, template)
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], dict[str, str], str]] = {
    "Bert": (
        "BertModel",
        {"max_position_embeddings": 512, **_SIZES},
        {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"},
        "[CLS] $A [SEP]",
    ),
    "XLMRoberta": (
        "XLMRobertaModel",
        {"max_position_embeddings": 514, "pad_token_id": 1, **_SIZES},
        {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
        "<s> $A </s>",
    ),
    "Qwen3": (
        "Qwen3Model",
        {"head_dim": 8, **_DECODER},
        {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        "$A <|endoftext|>",
    ),
    "Mistral": (
        "MistralModel",
        {"sliding_window": 4096, **_DECODER},
        {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
        "<s> $A",
    ),
    "Llama": (
        "LlamaModel",
        _DECODER,
        {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
        "<|begin_of_text|> $A",
    ),
}
PRESET_ARCHITECTURE = {
    "contriever": "Bert",
    "contriever-msmarco": "Bert",
    "mcontriever": "Bert",
    "mcontriever-msmarco": "Bert",
    "multilingual-e5-large-instruct": "XLMRoberta",
    "e5-mistral": "Mistral",
    "qwen3-embedding-0.6b": "Qwen3",
    "gritlm-7b": "Mistral",
    "reasonir-8b": "Llama",
}


def make_model(folder: Path, architecture: str, *, template: str | None = None) -> Path:
    """Save a random model of an architecture and a tokenizer trained on a few sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    class_name, sizes, specials, usual_template = ARCHITECTURES[architecture]
    template = template or usual_template
    tokens = list(dict.fromkeys(specials.values()))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXTS, *TASKS.values()], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, tokenizer.token_to_id(token)) for token in tokens]
    )
    # RoBERTa loses two positions to its padding; its tokenizers say so.
    longest = 512 if architecture == "XLMRoberta" else sizes["max_position_embeddings"]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=longest, **specials
    )
    fast.save_pretrained(folder)
    model_class = getattr(transformers, class_name)
    torch.manual_seed(7)
    config = model_class.config_class(vocab_size=tokenizer.get_vocab_size(), **sizes)
    model_class(config).eval().save_pretrained(folder)
    return folder
