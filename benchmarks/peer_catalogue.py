"""Who takes part in `vs_peers.py`: ours and each installed peer, with the weights each of them runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_process import LOAD_TIMEOUT_S, PeerFailed, PeerServer, Worker, free_port

SCRIPTS = Path(__file__).parent / "peers"
FORMATS = ("q4_1", "q4_0", "q8_0")


@dataclass(frozen=True, slots=True)
class Contestant:
    """One engine on one set of weights.

    Attributes:
        engine: argosy, llamacpp, transformers or vllm.
        weights: the format, such as q4_1 or bfloat16.
        python: the interpreter of its environment.
        model: a GGUF file or a safetensors folder.
        options: what the worker is told besides.
    """

    engine: str
    weights: str
    python: Path
    model: Path
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Unique among contestants."""
        return f"{self.engine} {self.weights}"

    def start_worker(self, *, threads: int, sequences: int, context_tokens: int) -> tuple[Worker, dict[str, Any]]:
        """A loaded worker, suspended, and what it told of itself. Raises `PeerFailed`."""
        worker = Worker(self.name, self.python, SCRIPTS / f"{self.engine}_worker.py", environment(self.engine, threads))
        try:
            told = worker.ask(
                LOAD_TIMEOUT_S,
                op="load",
                model=str(self.model),
                threads=threads,
                sequences=sequences,
                context_tokens=context_tokens,
                options=dict(self.options),
            )
        except BaseException:
            worker.close()
            raise
        return worker, {**told, "rss_bytes": worker.rss_bytes(), "model_bytes": size_bytes(self.model)}

    def start_server(self, *, threads: int, sequences: int, context_tokens: int) -> PeerServer:
        """A server that answers. Raises `PeerFailed`, also for an engine that has none."""
        port = free_port()
        command = self._server_command(port, threads, sequences, context_tokens)
        return PeerServer(self.name, command, environment(self.engine, threads), port)

    def _server_command(self, port: int, threads: int, sequences: int, context_tokens: int) -> list[str]:
        at = ["--host", "127.0.0.1", "--port", str(port)]
        size = ["--max-model-len", str(context_tokens), "--max-num-seqs", str(sequences)]
        if self.engine == "argosy":
            flags = [part for name, value in self.options.items() for part in (f"--{name.replace('_', '-')}", str(value))]
            log = ["--log-level", "warning"]
            return [*self._run("argosy"), "serve", str(self.model), *at, *size, *log, "--threads", str(threads), *flags]
        if self.engine == "vllm":
            dtype = ["--dtype", str(self.options["dtype"])]
            return [*self._run("vllm.entrypoints.openai.api_server"), "--model", str(self.model), *at, *size, *dtype]
        if self.engine == "llamacpp":
            team = ["--n_threads", str(threads), "--n_threads_batch", str(threads), "--n_ctx", str(context_tokens)]
            # It answers one request at a time; without this flag a later one would cut it short.
            return [*self._run("llama_cpp.server"), "--model", str(self.model), *at, *team, "--interrupt_requests", "False"]
        raise PeerFailed(f"{self.name} has no server in its environment")

    def _run(self, module: str) -> list[str]:
        return [str(self.python), "-m", module]


def environment(engine: str, threads: int) -> dict[str, str]:
    """Of a process: `threads` for whatever reads OMP_NUM_THREADS. vLLM takes the size of its KV cache in GiB from there,
    and is slowed down by OMP_NUM_THREADS: it binds a team to cores by itself."""
    found = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    if engine == "vllm":
        found.pop("OMP_NUM_THREADS", None)
        cores = sorted(os.sched_getaffinity(0))[:threads]
        return {**found, "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))}
    return {**found, "OMP_NUM_THREADS": str(threads)}


def find_contestants(
    peers: Path | None, gguf: Path, folder: Path | None, formats: tuple[str, ...], work: Path, engine_args: dict[str, Any]
) -> tuple[list[Contestant], dict[str, str]]:
    """Contestants that can run, and for those that cannot the reason.

    Args:
        peers: folder with the environments `hf`, `llamacpp` and `vllm`, any of which may be missing.
        gguf: the model; its own format is run, and with llama.cpp at hand the other `formats`.
        folder: the same weights as safetensors, for transformers and vLLM.
        work: where quantised files are kept.
        engine_args: settings of Argosy's engine.
    """
    skipped: dict[str, str] = {}
    pythons = {name: None if peers is None else peers / name / "bin" / "python" for name in ("hf", "llamacpp", "vllm")}
    present = {name: python for name, python in pythons.items() if python is not None and python.exists()}
    for name in pythons.keys() - present.keys():
        skipped[name] = "not installed" if peers is not None else "no --peers given"
    files = weight_files(gguf, formats, present.get("llamacpp"), work, skipped)
    found = [Contestant("argosy", kind, Path(sys.executable), file, engine_args) for kind, file in files.items()]
    if "llamacpp" in present:
        found += [Contestant("llamacpp", kind, present["llamacpp"], file) for kind, file in files.items()]
    for engine, environment_name, dtypes in (
        ("transformers", "hf", ("bfloat16", "float32")),
        ("vllm", "vllm", ("bfloat16",)),
    ):
        if environment_name not in present:
            continue
        if folder is None or not folder.is_dir():
            skipped[engine] = "no folder with safetensors of this model (--hf-model)"
            continue
        python = present[environment_name]
        found += [Contestant(engine, dtype, python, folder, {"dtype": dtype}) for dtype in dtypes]
    return found, skipped


def weight_files(
    gguf: Path, formats: tuple[str, ...], llamacpp: Path | None, work: Path, skipped: dict[str, str]
) -> dict[str, Path]:
    """The model in its own format and in `formats`, quantised again where need be; what cannot be had goes to `skipped`."""
    own = own_format(gguf)
    files = {own: gguf}
    for kind in formats:
        if kind == own:
            continue
        target = work / f"{gguf.stem.removesuffix(own.upper()).rstrip('.-_')}.{kind}.gguf"
        if not target.exists():
            if llamacpp is None:
                skipped[f"weights {kind}"] = "needs llama.cpp's quantiser"
                continue
            work.mkdir(parents=True, exist_ok=True)
            command = [str(llamacpp), str(SCRIPTS / "llamacpp_quantize.py"), str(gguf), str(target), kind, "2"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                skipped[f"weights {kind}"] = f"llama.cpp cannot make them: {done.stderr.strip().splitlines()[-1:]}"
                continue
        files[kind] = target
    return files


def own_format(gguf: Path) -> str:
    """From the file's name, such as model.Q4_1.gguf or model-q4_k_m.gguf; "gguf" if it does not say."""
    last = gguf.stem.replace("-", ".").rsplit(".", 1)[-1].lower()
    return last if last[:1] in ("q", "f", "b") and last[1:2].isdigit() else "gguf"


def size_bytes(model: Path) -> int:
    """Of a file, or of the tensors in a folder."""
    return model.stat().st_size if model.is_file() else sum(f.stat().st_size for f in model.glob("*.safetensors"))
