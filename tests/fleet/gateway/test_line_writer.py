import logging
import os
import time

import pytest

from argosy.errors import ConfigError
from argosy.fleet.gateway.line_writer import LineStream, LineWriter


def test_lines_arrive_in_order(tmp_path):
    path = tmp_path / "log"
    writer = LineWriter.to(str(path), max_lines=100)
    for number in range(50):
        writer.write(b"%d\n" % number)
    assert writer.close()
    assert path.read_text().split() == [str(number) for number in range(50)]
    assert writer.num_dropped == 0


def test_a_pipe_that_nobody_reads_holds_nobody_up():
    reader, descriptor = os.pipe()
    writer = LineWriter(descriptor, max_lines=100, delay_s=0.001)
    line = b"x" * 1023 + b"\n"
    began_s = time.monotonic()
    for _ in range(100):
        for _ in range(50):
            writer.write(line)
        time.sleep(0.001)
    # 5 MB went to a pipe that holds 64 KiB: what does not fit is dropped and counted, and nothing waited.
    assert writer.num_dropped > 4000
    assert len(writer._lines) == 100
    assert not writer.close(timeout_s=0.1)
    assert time.monotonic() - began_s < 10
    os.close(reader)
    writer._thread.join(5)


def test_a_reader_that_comes_back_is_served_again():
    reader, descriptor = os.pipe()
    writer = LineWriter(descriptor, max_lines=1000, delay_s=0.001)
    lines = [b"%04d" % number + b"y" * 995 + b"\n" for number in range(200)]
    for line in lines:
        writer.write(line)
    got = bytearray()
    while len(got) < 200_000:
        got += os.read(reader, 65536)
    assert bytes(got) == b"".join(lines)
    assert writer.close()
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_pipe_that_was_made_non_blocking_is_waited_for():
    reader, descriptor = os.pipe()
    os.set_blocking(descriptor, False)
    writer = LineWriter(descriptor, max_lines=1000, delay_s=0.001)
    for _ in range(200):
        writer.write(b"z" * 999 + b"\n")
    got = 0
    while got < 200_000:
        got += len(os.read(reader, 65536))
    assert writer.close()
    assert writer.num_dropped == 0
    os.close(reader)


def test_a_reader_that_is_gone_is_counted():
    reader, descriptor = os.pipe()
    os.close(reader)
    writer = LineWriter(descriptor, max_lines=10, delay_s=0.001)
    writer.write(b"a\n")
    assert writer.close()
    assert writer.num_dropped == 1


def test_a_file_that_was_moved_away_is_begun_again(tmp_path):
    path = tmp_path / "log"
    writer = LineWriter.to(str(path), max_lines=10)
    writer.write(b"old\n")
    while not path.read_bytes():
        time.sleep(0.01)
    path.rename(tmp_path / "log.1")
    writer.reopen()
    writer.write(b"new\n")
    assert writer.close()
    assert (tmp_path / "log.1").read_text() == "old\n"
    assert path.read_text() == "new\n"


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be opened: Is a directory"):
        LineWriter.to(str(tmp_path), max_lines=10)


def test_loggers_write_through_it(tmp_path):
    path = tmp_path / "log"
    writer = LineWriter.to(str(path), max_lines=10)
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(LineStream(writer)))
    logger.warning("häy %s", "\udc80")
    assert writer.close()
    assert path.read_text() == "häy \\udc80\n"
