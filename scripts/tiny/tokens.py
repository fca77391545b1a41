"""The tokenizer: byte-level BPE with GLM's 36 added tokens after the base vocabulary.

Their order is GLM's, and so is the split: the first 18 are special, the markup of reasoning and calls
is not. Digits are tokens of their own, unlike GLM's groups of up to three: a small model then adds
and multiplies the way people do.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

VOCAB = 4096
SPECIAL = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
    "<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>",
    "<|end_of_video|>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
)  # fmt: skip
MARKUP = (
    "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "/nothink", "<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>",
)  # fmt: skip
ADDED = SPECIAL + MARKUP
# A digit; a word with the space before it; other signs with theirs; white space.
_CUT = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train(texts: Iterable[str], path: Path, vocab: int = VOCAB) -> None:
    """Write tokenizer.json of exactly `vocab` ids. Raises ValueError when the texts are too few for that."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(_CUT), behavior="isolated")
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    base = vocab - len(ADDED)
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=base, initial_alphabet=alphabet, show_progress=False),
    )
    if (found := tokenizer.get_vocab_size()) != base:
        raise ValueError(f"the texts give {found} of {base} base tokens: use more of them")
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP])
    path.write_text(tokenizer.to_str(), encoding="utf-8")


def id_of(token: str, vocab: int = VOCAB) -> int:
    """The id of an added token."""
    return vocab - len(ADDED) + ADDED.index(token)


def write_tokenizer_config(path: Path, vocab: int = VOCAB) -> None:
    """tokenizer_config.json beside it."""
    decoder = {
        str(id_of(token, vocab)): {"content": token, "special": token in SPECIAL}
        for token in ADDED
    }  # fmt: skip
    body = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 65536,
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": decoder,
    }
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
