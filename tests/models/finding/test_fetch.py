import errno
import hashlib
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest

from argosy.errors import FetchError
from argosy.models import fetch
from argosy.models.fetch import RetryPolicy, download

CONTENT = random.Random(1).randbytes(1_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Sleeps(list):
    """Stands in for time.sleep."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def test_a_file_comes_whole_and_progress_ends_at_its_size(file_server, tmp_path):
    url, seen = file_server.add("/f", CONTENT), []
    download(url, tmp_path / "f", sha256=SHA256, progress=lambda *event: seen.append(event))
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert seen[0] == (0, len(CONTENT), "f")
    assert seen[-1] == (len(CONTENT), len(CONTENT), "f")
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f"]


def test_a_finished_file_is_not_fetched_again(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    download(url, tmp_path / "f", sha256=SHA256)
    download(url, tmp_path / "f", sha256=SHA256)
    assert len(file_server.requests) == 1


@pytest.mark.parametrize("kept", [0, 1, 65_536, len(CONTENT) - 1, len(CONTENT)])
def test_a_cut_connection_is_resumed_at_the_next_byte(file_server, tmp_path, kept):
    url = file_server.add("/f", CONTENT)
    file_server.cuts = [kept]
    with pytest.raises(FetchError) if kept < len(CONTENT) else nullcontext():
        download(url, tmp_path / "f", sha256=SHA256, retry=RetryPolicy(attempts=1))
    download(url, tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert file_server.body_bytes_sent == len(CONTENT)
    if 0 < kept < len(CONTENT):
        assert file_server.gets("/f") == [None, f"bytes={kept}-"]
        assert file_server.if_ranges[1] == file_server.etags["/f"]


def test_a_part_that_is_whole_already_is_only_checked(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    file_server.cuts = [500]
    with pytest.raises(FetchError):
        download(url, tmp_path / "f", sha256=SHA256, retry=RetryPolicy(attempts=1))
    (tmp_path / "f.part").write_bytes(CONTENT)
    download(url, tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert file_server.body_bytes_sent == 500


def test_a_killed_process_leaves_a_part_that_the_next_one_goes_on_from(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    file_server.chunk_delay_s = 0.05
    script = (
        "import sys, pathlib; from argosy.models.fetch import download; download(sys.argv[1], pathlib.Path(sys.argv[2]), "
        "sha256=sys.argv[3])"
    )
    child = subprocess.Popen([sys.executable, "-c", script, url, str(tmp_path / "f"), SHA256])
    part = tmp_path / "f.part"
    while child.poll() is None and not (part.exists() and part.stat().st_size > 200_000):
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    kept = part.stat().st_size
    file_server.chunk_delay_s = 0.0
    download(url, tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert file_server.gets("/f") == [None, f"bytes={kept}-"]


def test_a_server_without_ranges_sends_all_again(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    file_server.ranges_work, file_server.cuts = False, [300_000]
    download(url, tmp_path / "f", sha256=SHA256, sleep=Sleeps())
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_file_that_changed_since_comes_whole(file_server, tmp_path):
    other = random.Random(2).randbytes(len(CONTENT))
    url = file_server.add("/f", other)
    file_server.cuts = [300_000]
    with pytest.raises(FetchError, match="300000 bytes are kept"):
        download(url, tmp_path / "f", retry=RetryPolicy(attempts=1))
    file_server.add("/f", CONTENT)
    download(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_damaged_part_is_dropped_and_fetched_once_more(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    file_server.cuts = [300_000]
    with pytest.raises(FetchError):
        download(url, tmp_path / "f", sha256=SHA256, retry=RetryPolicy(attempts=1))
    (tmp_path / "f.part").write_bytes(bytes(300_000))
    download(url, tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert file_server.gets("/f") == [None, "bytes=300000-", None]


def test_a_part_of_another_file_is_not_resumed(file_server, tmp_path):
    file_server.add("/old", CONTENT[::-1])
    file_server.etags["/old"] = ""
    file_server.cuts = [300_000]
    with pytest.raises(FetchError):
        download(file_server.url + "/old", tmp_path / "f", retry=RetryPolicy(attempts=1))
    download(file_server.add("/new", CONTENT), tmp_path / "f", sha256=SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert file_server.gets("/new") == [None]


def test_a_weak_etag_is_no_promise_of_equal_bytes(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    file_server.etags["/f"] = 'W/"weak"'
    file_server.cuts = [300_000]
    download(url, tmp_path / "f", sha256=SHA256, sleep=Sleeps())
    assert file_server.if_ranges == [None, None]
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_the_wrong_checksum_is_refused_and_nothing_is_kept(file_server, tmp_path):
    url = file_server.add("/f", CONTENT)
    with pytest.raises(FetchError, match=rf"wrong checksum: sha256 {SHA256}, expected 0000"):
        download(url, tmp_path / "f", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_troubled_servers_are_asked_again_with_growing_waits(file_server, tmp_path):
    url, sleeps = file_server.add("/f", CONTENT), Sleeps()
    file_server.statuses = [503, 429, 500]
    download(url, tmp_path / "f", sha256=SHA256, sleep=sleeps)
    assert sleeps == [0.5, 1.0, 2.0]


def test_a_gained_byte_starts_the_count_of_failures_anew(file_server, tmp_path):
    url, sleeps = file_server.add("/f", CONTENT), Sleeps()
    file_server.cuts = [100_000] * 9
    download(url, tmp_path / "f", sha256=SHA256, retry=RetryPolicy(attempts=2), sleep=sleeps)
    assert len(sleeps) == 9


def test_a_server_that_always_cuts_at_one_place_does_not_hold_us_for_ever(file_server, tmp_path):
    url, sleeps = file_server.add("/f", CONTENT), Sleeps()
    file_server.ranges_work, file_server.cuts = False, [100_000] * 50
    with pytest.raises(FetchError, match="closed connection"):
        download(url, tmp_path / "f", sleep=sleeps)
    assert len(sleeps) <= 6


def test_refusals_are_not_repeated(file_server, tmp_path):
    sleeps = Sleeps()
    with pytest.raises(FetchError, match="answered 404"):
        download(file_server.url + "/none?token=secret", tmp_path / "f", sleep=sleeps)
    assert sleeps == []
    assert len(file_server.requests) == 1


def test_messages_hide_credentials(file_server, tmp_path):
    url = file_server.url.replace("http://", "http://user:secret@") + "/none?token=secret"
    with pytest.raises(FetchError) as caught:
        download(url, tmp_path / "f")
    assert "secret" not in str(caught.value)
    assert "/none" in str(caught.value)


def test_nobody_listening_is_one_line(tmp_path):
    with pytest.raises(FetchError, match=r"cannot fetch http://127\.0\.0\.1:9/f: ") as caught:
        download("http://127.0.0.1:9/f", tmp_path / "f", sleep=Sleeps())
    assert "\n" not in str(caught.value)


def test_a_full_disk_says_how_much_is_needed_and_keeps_what_is_here(file_server, tmp_path, monkeypatch):
    url, real_write, left = file_server.add("/f", CONTENT), fetch.write_all, [400_000]

    def write_until_full(descriptor: int, data: bytes) -> None:
        if len(data) > left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= len(data)
        real_write(descriptor, data)

    monkeypatch.setattr(fetch, "write_all", write_until_full)
    with pytest.raises(FetchError, match=r"not enough space for f: \d+ bytes .* are needed in .* are free; .*ARGOSY_HOME"):
        download(url, tmp_path / "f", sha256=SHA256)
    kept = (tmp_path / "f.part").stat().st_size
    assert 0 < kept <= 400_000
    monkeypatch.setattr(fetch, "write_all", real_write)
    download(url, tmp_path / "f", sha256=SHA256)
    assert file_server.gets("/f")[-1] == f"bytes={kept}-"
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_a_folder_that_cannot_be_made_is_a_clear_error(file_server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FetchError, match="cannot write to the model cache"):
        download(file_server.add("/f", CONTENT), tmp_path / "file" / "f")


def test_file_addresses_are_read_and_resumed(tmp_path):
    source = tmp_path / "with space"
    source.write_bytes(CONTENT)
    target = tmp_path / "out" / "f"
    download(source.as_uri(), target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    with pytest.raises(FetchError, match="no such file"):
        download((tmp_path / "none").as_uri(), tmp_path / "g")
