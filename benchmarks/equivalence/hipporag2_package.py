"""Store how the public package ``hipporag`` 2.0.0a4 ranks the toy corpus, to compare our HippoRAG 2 with.

The package's pins exclude this project's environment, so it runs in a throwaway one, without its pins:

    python -m venv scratch/hipporag && scratch/hipporag/bin/pip install --no-deps hipporag==2.0.0a4
    scratch/hipporag/bin/pip install torch transformers openai litellm igraph networkx tiktoken pydantic tenacity \
        einops tqdm boto3 pandas pyarrow scipy numpy
    .venv/bin/python benchmarks/equivalence/hipporag2_package.py scratch/hipporag/bin/python

A server on loopback plays the model and the embedder by the rules of hipporag2_toy.py; gritlm and vllm, which the
package imports and does not use here, are stand-ins. Writes hipporag2_ranking.json beside this file.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import hipporag2_toy as toy

OUT = Path(__file__).with_name("hipporag2_ranking.json")
DOCUMENTS = [f"{title}\n{text}" for title, text in toy.PASSAGES]


def reply(messages: list[dict[str, Any]]) -> str:
    """The scripted model: entities, triples, or the facts that the filter keeps."""
    last = messages[-1]["content"]
    if "[[ ## fact_before_filter ## ]]" in last:
        question = re.search(r"## question ## \]\]\n(.*?)\n", last)[1].strip()
        facts = json.loads(re.search(r"## fact_before_filter ## \]\]\n(.*?)\n", last)[1])["fact"]
        kept = {"fact": [fact for fact in facts if toy.keeps(question, fact)]}
        return f"[[ ## fact_after_filter ## ]]\n{json.dumps(kept)}\n\n[[ ## completed ## ]]"
    [title] = [title for title, text in toy.PASSAGES if text in last]
    triples = toy.TRIPLES[title]
    entities = list(dict.fromkeys(part for s, _, o in triples for part in (s, o)))
    if "named_entities" in last:  # the second step shows the entities of the first
        return json.dumps({"triples": triples})
    return json.dumps({"named_entities": entities})


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if self.path.endswith("/embeddings"):
            texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
            rows = [
                {"object": "embedding", "index": i, "embedding": toy.vector(t).astype(float).tolist()}
                for i, t in enumerate(texts)
            ]
            answer = {"object": "list", "model": body["model"], "data": rows, "usage": usage}
        else:
            message = {"role": "assistant", "content": reply(body["messages"])}
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            answer = {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [choice],
                "usage": usage,
            }
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class StandIn(types.ModuleType):
    """A module that has whatever is asked of it, and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def inside(address: str, out: str) -> None:
    """In the throwaway environment: index, retrieve, write the rankings."""
    for name in ("gritlm", "vllm"):
        module = StandIn(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name] = module
    from hipporag import HippoRAG

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "save_dir": folder,
            "llm_model_name": "scripted",
            "llm_base_url": address,
            "embedding_model_name": "text-embedding-toy",
            "embedding_base_url": address,
        }
        known = inspect.signature(HippoRAG.__init__).parameters
        rag = HippoRAG(**{key: value for key, value in options.items() if key in known})
        rag.index(docs=DOCUMENTS)
        found = rag.retrieve(queries=list(toy.QUESTIONS), num_to_retrieve=len(DOCUMENTS))
    titles = {document: title for document, (title, _) in zip(DOCUMENTS, toy.PASSAGES, strict=True)}
    rankings = {
        one.question: {"titles": [titles[d] for d in one.docs], "scores": [float(s) for s in one.doc_scores]}
        for one in found
    }
    stored = {"package": "hipporag " + importlib.metadata.version("hipporag"), "toy": toy.digest()}
    Path(out).write_text(json.dumps(stored | {"rankings": rankings}, indent=1) + "\n", encoding="utf-8")


def main(python: str) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/v1"
    extra = {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": address,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NO_PROXY": "127.0.0.1",
    }
    try:
        subprocess.run([python, __file__, "--inside", address, str(OUT)], env=os.environ | extra, check=True)
    finally:
        server.shutdown()
    print(f"wrote {OUT}")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "--inside":
        inside(*sys.argv[2:])
    elif len(sys.argv) == 2:
        main(sys.argv[1])
    else:
        sys.exit("usage: hipporag2_package.py <python of the throwaway environment>")
