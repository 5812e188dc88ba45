"""TextCNN (Kim, "Convolutional neural networks for sentence classification", EMNLP 2014)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fedasmu.models import shapes

WINDOWS = (3, 4, 5)
FILTERS = 100


def textcnn(
    shape: tuple[int, ...],
    classes: int,
    *,
    vocabulary: int = 10_000,
    embedding: int = 100,
    pretrained: Any = None,
    frozen: bool = False,
    dropout: float = 0.5,
) -> TextCNN:
    """For token ids below `vocabulary`. `pretrained` is any matrix torch can read, one row per id."""
    shapes.tokens("textcnn", shape, max(WINDOWS))
    shapes.positive("textcnn", vocabulary=vocabulary, embedding=embedding)
    if not 0 <= dropout < 1:
        raise ValueError(f"textcnn: option 'dropout' must be at least 0 and below 1, got {dropout}")
    words = nn.Embedding(vocabulary, embedding, padding_idx=0)
    if pretrained is not None:
        matrix = torch.as_tensor(pretrained, dtype=torch.float32)
        if matrix.shape != words.weight.shape:
            expected, given = tuple(words.weight.shape), tuple(matrix.shape)
            raise ValueError(f"textcnn: 'pretrained' must be (vocabulary, embedding) = {expected}, got {given}")
        words.weight.data.copy_(matrix)
    words.weight.requires_grad_(not frozen)
    return TextCNN(words, classes, dropout)


class TextCNN(nn.Module):
    """Each window's filters slide over the word vectors; the strongest answer of each is a feature."""

    def __init__(self, words: nn.Embedding, classes: int, dropout: float) -> None:
        super().__init__()
        self.words = words
        self.windows = nn.ModuleList(
            nn.Sequential(nn.Conv1d(words.embedding_dim, FILTERS, width), nn.ReLU()) for width in WINDOWS
        )
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(FILTERS * len(WINDOWS), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors = self.words(tokens).transpose(1, 2)
        features = torch.cat([window(vectors).amax(2) for window in self.windows], dim=1)
        return self.classifier(self.dropout(features))  # type: ignore[no-any-return]
