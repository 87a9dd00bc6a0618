"""Structured logs."""

import io
import json
import logging

import pytest

from argosy.errors import ConfigError
from argosy.observe.logs import configure_logging, log_event


@pytest.fixture(autouse=True)
def _restore():
    loggers = [logging.getLogger(name) for name in ("argosy", "uvicorn")]
    saved = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, handlers, level, propagate in saved:
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


def logged(log_format, *args, level="info", **fields):
    stream = io.StringIO()
    configure_logging(level, log_format, stream)
    log_event(logging.getLogger("argosy.test"), logging.INFO, *args, **fields)
    return stream.getvalue()


def test_json_lines():
    line = json.loads(logged("json", "done", request_id="r1", tokens=3, ratio=0.5, absent=None, tags={"a": 1}))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "logger": "argosy.test", "message": "done", "request_id": "r1", "tokens": 3, "ratio": 0.5,
        "tags": {"a": 1},
    }  # fmt: skip


def test_fields_do_not_overwrite_the_event():
    assert json.loads(logged("json", "done", logger="forged"))["logger"] == "argosy.test"


def test_text():
    line = logged("text", "done", request_id="r1", tokens=3, flag=True, quoted='a "b" c', empty="", absent=None)
    assert line.endswith('INFO    argosy.test done request_id=r1 tokens=3 flag=true quoted="a \\"b\\" c" empty=""\n')


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_callers_string_cannot_start_a_line(log_format):
    text = logged(log_format, "done", user="x\n2030 ERROR forged\x1b[2J\u2028y")
    assert len(text.splitlines()) == 1 or log_format == "json"
    assert text.count("\n") == 1
    assert "\x1b" not in text


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_tracebacks(log_format):
    stream = io.StringIO()
    configure_logging("info", log_format, stream)
    try:
        raise ZeroDivisionError("why")
    except ZeroDivisionError:
        log_event(logging.getLogger("argosy.test"), logging.ERROR, "failed", exc_info=True)
    text = json.loads(stream.getvalue())["traceback"] if log_format == "json" else stream.getvalue()
    assert "ZeroDivisionError: why" in text


def test_levels_and_repeated_configuration():
    assert logged("text", "done", level="warning") == ""
    assert logged("text", "done").count("done") == 1
    with pytest.raises(ConfigError, match="log level"):
        configure_logging("loud")
    with pytest.raises(ConfigError, match="log format"):
        configure_logging("info", "xml")
