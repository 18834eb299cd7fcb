"""The language model: structure, forward pass, weights in and out, tokenizer."""
