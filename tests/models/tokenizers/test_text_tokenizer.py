import threading
import time

from argosy.models.tokenizers import tokenizer_from_gguf


def test_other_threads_run_while_a_long_text_is_encoded(byte_level_metadata):
    """A server encodes on a thread of its own, which is of use only if the event loop gets the interpreter meanwhile."""
    tokenizer = tokenizer_from_gguf(byte_level_metadata(add_bos_token=False))
    text = "the hen and the world 123 " * 60_000
    num_turns = 0
    encoder = threading.Thread(target=tokenizer.encode, args=(text,))
    encoder.start()
    while encoder.is_alive():
        num_turns += 1
        time.sleep(0.001)
    assert num_turns > 10
