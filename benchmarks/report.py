"""What every benchmark prints and writes: the machine, the versions, the figures, under benchmarks/results/."""

from __future__ import annotations

import datetime
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
VERSIONS_OF = ("argosy", "torch", "transformers", "tokenizers", "numpy", "numba", "openai", "fastapi", "uvicorn")


def machine() -> dict[str, Any]:
    """Processor, cores this process may use, memory in GiB and the versions that matter."""
    cpu, features = platform.processor() or platform.machine(), ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        fields = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        fields = {k.strip(): v.strip() for k, v in fields.items()}
        cpu = fields.get("model name", cpu)
        known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
        features = " ".join(f for f in known if f in fields.get("flags", "").split())
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu,
        "features": features,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_gib, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in VERSIONS_OF if _version(name)},
    }


def write_result(name: str, figures: dict[str, Any]) -> Path:
    """Write `benchmarks/results/NAME.json` and return its path relative to the working directory if it lies below it."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    path.write_text(json.dumps({"benchmark": name, "date": date, "machine": machine(), **figures}, indent=1) + "\n")
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
