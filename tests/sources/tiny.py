"""Tiny models, of each kind one, with what prepares its inputs."""

from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

WORDS = "the cat sat on a mat and the dog lay by it while rain fell over hills of green glass"


def words(count: int, *, offset: int = 0) -> str:
    """So many words, in which no two windows are alike: w0 w1 w2 ..."""
    return " ".join(f"w{i + offset}" for i in range(count))


def word_tokenizer(*, special: bool) -> PreTrainedTokenizerFast:
    """One token per word, w7 being 107; [CLS] ... [SEP] where asked."""
    vocab = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, **{f"w{i}": 100 + i for i in range(900)}}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if special:
        around = [("[CLS]", 1), ("[SEP]", 2)]
        tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, around)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE, as GPT-2 has it: a word and the space before it are one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([WORDS] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="a")


def prefix_tokenizer() -> PreTrainedTokenizerFast:
    """Puts a space before every text, even where one is, as Llama 2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trainer = trainers.BpeTrainer(vocab_size=300, show_progress=False)
    tokenizer.train_from_iterator(WORDS.split() * 3, trainer)  # no token crosses a space
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def llama() -> tuple[Any, ...]:
    torch.manual_seed(1)
    config = LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=1000, max_position_embeddings=64)
    return LlamaForCausalLM(config), word_tokenizer(special=False)


def bert() -> tuple[Any, ...]:
    torch.manual_seed(2)
    config = BertConfig(**SMALL, vocab_size=1000, max_position_embeddings=48)
    return BertForMaskedLM(config), word_tokenizer(special=True)


def vit() -> tuple[Any, ...]:
    torch.manual_seed(3)
    config = ViTConfig(**SMALL, image_size=32, patch_size=8, num_labels=5)
    return ViTForImageClassification(config), ViTImageProcessor(size={"height": 32, "width": 32})


def whisper() -> tuple[Any, ...]:
    torch.manual_seed(4)
    config = WhisperConfig(
        vocab_size=60,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_source_positions=100,
        num_mel_bins=20,
        decoder_start_token_id=7,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    extractor = WhisperFeatureExtractor(feature_size=20, chunk_length=2)
    return WhisperForConditionalGeneration(config), extractor


def wav2vec2() -> tuple[Any, ...]:
    torch.manual_seed(5)
    config = Wav2Vec2Config(
        **SMALL,
        vocab_size=20,
        conv_dim=(8, 8),
        conv_stride=(20, 16),
        conv_kernel=(20, 16),
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    return Wav2Vec2ForCTC(config), Wav2Vec2FeatureExtractor(return_attention_mask=False)


def clip() -> tuple[Any, ...]:
    torch.manual_seed(6)
    text = {**SMALL, "vocab_size": 60, "max_position_embeddings": 8}
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    size = {"height": 32, "width": 32}
    processor = CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=size)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)), processor


MAKERS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "clip": clip,
}
