"""The words as bytes: the codec, the methods' notes, and differences between models, rounded."""
