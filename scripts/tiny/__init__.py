"""The bundled tiny model: its corpus, its tokenizer and its training. Nothing here is shipped in the wheel."""
