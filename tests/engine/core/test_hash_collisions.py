"""The prefix cache when hashes are as bad as can be: tokens decide, and tenants stay apart."""

import random


class WeaklyHashed(int):
    """A token id whose hash is one bit, so that blocks of even ids all have the same hash."""

    def __hash__(self) -> int:
        return int(self) % 2


def prompts(rng):
    """Many share their beginnings, and blocks that differ have equal hashes."""
    for _ in range(1000):
        yield [rng.choice([2, 4, 6]) if rng.random() < 0.1 else 2 for _ in range(rng.randint(1, 24))]


def test_a_thousand_prompts_give_their_cold_output_though_their_blocks_collide(lab):
    class Executor(lab.FakeExecutor):
        def chains(self, sequence_id):
            self.known[sequence_id][:] = map(int, self.known[sequence_id])
            return super().chains(sequence_id)

    rng = random.Random(0)
    requests = [(prompt, rng.choice("ab"), rng.randrange(100)) for prompt in prompts(rng)]
    cold = lab.rig(enable_prefix_caching=False)
    warm = lab.rig(Executor(4), num_blocks=48)
    for rig, token in ((cold, int), (warm, WeaklyHashed)):
        for number, (prompt, salt, seed) in enumerate(requests):
            rig.submit(map(token, prompt), request_id=f"r{number}", cache_salt=salt, seed=seed, max_tokens=2)
            if number % 8 == 7:
                rig.run()
        rig.run()
        rig.assert_idle()
    blocks = {tuple(prompt[i : i + 4]) for prompt, _, _ in requests for i in range(0, len(prompt) - 3, 4)}
    hashes = {hash(tuple(map(WeaklyHashed, block))) for block in blocks}
    assert (len(blocks) > 20, len(hashes)) == (True, 1)
    assert warm.tokens == cold.tokens
    assert warm.scheduler.prefix_hits_tokens > 1000


def test_tenants_stay_apart_where_every_hash_is_equal(lab):
    rig = lab.rig()
    prompt = [WeaklyHashed(2)] * 9
    rig.submit(prompt, max_tokens=1, cache_salt="a")
    rig.run()
    cached = {}
    for salt in ("b", "", "A", "a"):
        (sequence,) = rig.submit(prompt, max_tokens=1, cache_salt=salt)
        rig.run()
        cached[salt] = sequence.num_cached_tokens
    assert cached == {"b": 0, "": 0, "A": 0, "a": 8}
