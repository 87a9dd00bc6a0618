from __future__ import annotations

import ctypes
import dataclasses
import threading

import pytest

from argosy.kernels import jit as jit_module
from argosy.kernels.features import host_target
from argosy.kernels.jit import JitCompiler, cache_key, compile_object

ADD = """
define i64 @add(i64 %x, i64 %y) {
  %sum = add i64 %x, %y
  ret i64 %sum
}
define i64 @sub(i64 %x, i64 %y) {
  %difference = sub i64 %x, %y
  ret i64 %difference
}
"""
I64 = ctypes.c_int64


def call(address: int, x: int, y: int) -> int:
    return ctypes.CFUNCTYPE(I64, I64, I64)(address)(x, y)


def test_functions_run(tmp_path):
    jit = JitCompiler(tmp_path)
    assert call(jit.address(ADD, "add"), 40, 2) == 42
    assert call(jit.address(ADD, "sub"), 40, 2) == 38
    assert jit.num_compiled == 1


def test_a_function_that_is_not_there_is_our_own_mistake(tmp_path):
    with pytest.raises(AssertionError, match="no function 'mul'"):
        JitCompiler(tmp_path).address(ADD, "mul")


def test_the_second_process_does_not_compile(tmp_path, monkeypatch):
    JitCompiler(tmp_path).address(ADD, "add")
    monkeypatch.setattr(jit_module, "compile_object", lambda *_: pytest.fail("compiled although it was on disk"))
    again = JitCompiler(tmp_path)
    assert call(again.address(ADD, "add"), 1, 2) == 3
    assert again.num_compiled == 0


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-1], lambda b: b[:40] + bytes([b[40] ^ 1]) + b[41:], lambda b: b"", lambda b: b[:20]]
)
def test_a_damaged_object_is_compiled_again_and_replaced(tmp_path, damage):
    JitCompiler(tmp_path).address(ADD, "add")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    jit = JitCompiler(tmp_path)
    assert call(jit.address(ADD, "add"), 1, 2) == 3
    assert jit.num_compiled == 1
    assert path.read_bytes() == whole


def test_without_a_writable_folder_code_runs_all_the_same(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    jit = JitCompiler(blocked / "below")
    assert call(jit.address(ADD, "add"), 1, 2) == 3


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("disk full")

    monkeypatch.setattr(jit_module.os, "replace", refuse)
    JitCompiler(tmp_path).address(ADD, "add")
    assert list(tmp_path.iterdir()) == []


def test_the_key_names_everything_that_decides_the_code():
    host = host_target()
    keys = {cache_key(ADD, host), cache_key(ADD + "\n", host)}
    for field in ("triple", "cpu", "features"):
        keys.add(cache_key(ADD, dataclasses.replace(host, **{field: getattr(host, field) + "x"})))
    assert len(keys) == 5


def test_threads_that_ask_at_once_compile_once(tmp_path):
    jit = JitCompiler(tmp_path)
    addresses: list[int] = []
    threads = [threading.Thread(target=lambda: addresses.append(jit.address(ADD, "add"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert jit.num_compiled == 1
    assert len(addresses) == 4
    assert len(set(addresses)) == 1


def test_objects_do_not_depend_on_when_they_are_made():
    assert compile_object(ADD, host_target()) == compile_object(ADD, host_target())
