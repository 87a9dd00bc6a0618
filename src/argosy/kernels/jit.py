"""From IR to a callable address, through a cache of object files on disk.

    ROOT/KEY.o      KEY = sha256 of the IR, the target and LLVM's version; a sha256 of the object, then the object

An object whose checksum does not hold (torn write, bit rot, another tool's file) is compiled again and replaced.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import llvmlite.binding as llvm

from argosy.kernels.features import Target, host_target
from argosy.models.cache import default_cache_dir

_DIGEST_BYTES = 32
_OPTIMISATION_LEVEL = 2


class JitCompiler:
    """Compiles modules for this processor and keeps their code in memory for as long as it lives itself.

    Addresses it gave out are dangling once it is garbage collected; whoever calls them must hold it. Safe to use from
    several threads and by several processes on one folder.

    Attributes:
        num_compiled: modules compiled by this object, as opposed to found in memory or on disk.
    """

    def __init__(self, folder: Path | None = None) -> None:
        """Keep objects under `folder`; by default `kernels` in argosy's cache folder."""
        self.folder = default_cache_dir() / "kernels" if folder is None else folder
        self.num_compiled = 0
        self._target = host_target()
        self._engines: dict[str, llvm.ExecutionEngine] = {}
        self._lock = threading.Lock()

    def address(self, ir_text: str, function: str) -> int:
        """The address of `function` in the module `ir_text`, compiled unless it was before."""
        key = cache_key(ir_text, self._target)
        with self._lock:
            if key not in self._engines:
                self._engines[key] = _load(self._object(key, ir_text), self._target)
            address = int(self._engines[key].get_function_address(function))
        assert address != 0, f"the module has no function {function!r}"
        return address

    def _object(self, key: str, ir_text: str) -> bytes:
        path = self.folder / f"{key}.o"
        stored = _read_checked(path)
        if stored is not None:
            return stored
        code = compile_object(ir_text, self._target)
        self.num_compiled += 1
        with suppress(OSError):  # without a writable cache folder the code still runs, it is only compiled at every start
            _write_checked(path, code)
        return code


def cache_key(ir_text: str, target: Target) -> str:
    """Hex digest of everything that decides what machine code comes out."""
    version = ".".join(map(str, llvm.llvm_version_info))
    parts = (ir_text, target.triple, target.cpu, target.features, version, str(_OPTIMISATION_LEVEL))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_object(ir_text: str, target: Target) -> bytes:
    """An ELF (Mach-O, COFF) object with the functions of `ir_text`, optimised for `target`."""
    machine = _target_machine(target)
    return bytes(machine.emit_object(_optimised(ir_text, machine)))


def compile_assembly(ir_text: str, target: Target) -> str:
    """What `compile_object` makes, as text; for targets other than this processor too."""
    machine = _target_machine(target)
    return str(machine.emit_assembly(_optimised(ir_text, machine)))


def _optimised(ir_text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    module = llvm.parse_assembly(ir_text)
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    # Kernels are written unrolled and vectorised; LLVM's own attempts would only add code.
    options = llvm.create_pipeline_tuning_options(speed_level=_OPTIMISATION_LEVEL)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def _target_machine(target: Target) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=target.cpu, features=target.features, opt=_OPTIMISATION_LEVEL, jit=True
    )


def _load(code: bytes, target: Target) -> llvm.ExecutionEngine:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(target))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine


def _read_checked(path: Path) -> bytes | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write_checked(path: Path, code: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
