"""The tokenizer: byte-level BPE with GLM's 36 added tokens after the base vocabulary.

Their order is GLM's, and so is the split: the first 18 are special, the markup of reasoning and calls
is not. Digits are tokens of their own, unlike GLM's groups of up to three: a small model then adds
and multiplies the way people do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
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
# A digit; capitals; a word with the space before it, its capital begins it; other signs; white space.
_CUT = r"\p{N}| ?\p{Lu}+(?!\p{Ll})| ?\p{Lu}?[\p{Ll}\p{Lo}\p{Lm}\p{Lt}]+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WHOLE = re.compile(r" ?[A-Z]+(?![a-z])| ?[A-Z]?[^\W\d_A-Z]+| ?(?:[^\w\s]|_)+")  # words and signs
_OFTEN = (
    1 / 7000
)  # of all texts: a word that occurs in so many is one of the corpus, not an invented one


def train(texts: Iterable[str], path: Path, vocab: int = VOCAB) -> None:
    """Write tokenizer.json of exactly `vocab` ids. Raises ValueError when the texts are too few for that."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    known, rare = _counted(texts, (vocab - len(ADDED)) // 2)
    ids, merges = _pieces(known, rare, vocab - len(ADDED))
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    cut = pre_tokenizers.Split(Regex(_CUT), behavior="isolated")
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([cut, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP])
    path.write_text(tokenizer.to_str(), encoding="utf-8")


def _counted(texts: Iterable[str], most: int) -> tuple[list[str], list[str]]:
    """Words and signs that are tokens of their own, each with its space or without, at most so many; and
    the other words, without their space, once each. Unknown capitals stay letters.
    """
    counts: Counter[str] = Counter()
    number = 0
    for number, text in enumerate(texts, 1):  # noqa: B007
        counts.update(set(_WHOLE.findall(text)))
    known = [part for part, often in counts.most_common(most) if often >= number * _enough(part)]
    words = {part.removeprefix(" ") for part in counts.keys() - set(known)}
    return known, sorted(word for word in words if word.isalpha() and not word.isupper())


def _enough(part: str) -> float:
    """Share of texts that a known part is in. Letters alone are mostly of codes."""
    return 20 * _OFTEN if len(part.removeprefix(" ")) == 1 and part[-1].isalpha() else _OFTEN


def _pieces(
    known: Sequence[str], rare: Iterable[str], wanted: int
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """The base vocabulary: every byte, what is known, and pieces of rare words, with their merges.

    No merge has a space in it, so that a rare word is cut in the same way wherever it stands. Every rare
    word counts once: what is merged is common to many words, and no piece is of a single one.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    parts = [*alphabet, *(spelled.pre_tokenize_str(part)[0][0] for part in known)]
    ids = {part: i for i, part in enumerate(dict.fromkeys(parts))}
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spelled])
    trainer = trainers.BpeTrainer(vocab_size=wanted, initial_alphabet=alphabet, show_progress=False)
    learner.train_from_iterator(rare, trainer)
    merges: list[tuple[str, str]] = []
    for left, right in json.loads(learner.to_str())["model"]["merges"]:
        if len(ids) == wanted:
            return ids, merges
        merges.append((left, right))
        ids.setdefault(left + right, len(ids))
    raise ValueError(f"the texts give {len(ids)} of {wanted} base tokens: use more of them")


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
