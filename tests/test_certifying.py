"""The certify stage on the small project: rows checked by searching again, what runs missed, bad input, replays."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from project_fixture import REPO, WORLD, make_project, params_for, run_project, write_params

from multihop import certifying, config, jsonl, stages
from multihop.errors import ConfigError, DataError
from multihop.session import opened

KS = [1, 3, 5, 10]
CERTIFICATES = {"ks": KS, "corpora": ["passages"]}


def certified(root: Path) -> dict[str, Any]:
    async def work() -> dict[str, Any]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            return certifying.certify_all(session)

    return asyncio.run(work())


def rows_of(root: Path, index: str = "lsa-passages") -> list[dict[str, Any]]:
    return list(jsonl.read(root / f"results/certificates/musique/{index}.jsonl"))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A project with two runs answered and certified: (root, summary)."""
    from scripted_server import ScriptedServer

    root = make_project(tmp_path_factory.mktemp("certified") / "project", 3, certificates=CERTIFICATES)
    with pytest.MonkeyPatch.context() as patch, ScriptedServer() as server:
        patch.delenv("MULTIHOP_LIVE", raising=False)
        patch.setenv("MULTIHOP_SCRIPTED_URL", server.url)
        patch.setenv("MULTIHOP_HOME", str(root / "home"))
        for run in ("direct", "vanilla", "arag"):
            run_project(root, run)
        return root, certified(root)


def test_every_gold_passage_has_a_row_and_every_witness_holds(done):
    """Each certificate is tried again with the Retriever: the query returns the passage at that rank, from k on."""
    root, _ = done
    rows = rows_of(root)
    assert [(r["qid"], r["passage"]) for r in rows] == [(q, p) for q in ("0", "q1", "q2") for p in ("p0", "p1")]
    checked = 0

    async def work() -> None:
        nonlocal checked
        async with opened(config.load(root / "params.yaml"), root) as session:
            retriever = certifying.open_certificate_index(session, "musique", "lsa-passages")
            for row in rows:
                for tool in ("dense", "semantic_search", "keyword_search", "bm25"):
                    for w in row["certificates"][tool].values():
                        for witness in (w, *w.get("others", ())):
                            for k in KS:
                                ids = [hit.chunk_id for hit in getattr(retriever, tool)(witness["query"], k)]
                                assert (row["passage"] in ids) is (witness["k"] <= k), (row, tool, witness, k)
                            ids = [hit.chunk_id for hit in getattr(retriever, tool)(witness["query"], witness["k"])]
                            assert ids.index(row["passage"]) + 1 == witness["rank"]
                            checked += 1

    asyncio.run(work())
    assert checked > 30


def test_no_better_witness_was_overlooked(done):
    """The question as the only probe of T0: where the row has none, the Retriever finds nothing in its top 10."""
    root, _ = done
    questions = {r["id"]: r["text"] for r in jsonl.read(root / "data/prepared/musique/questions.jsonl")}

    async def work() -> None:
        async with opened(config.load(root / "params.yaml"), root) as session:
            retriever = certifying.open_certificate_index(session, "musique", "lsa-passages")
            for row in rows_of(root):
                for tool in ("dense", "bm25"):
                    ids = [hit.chunk_id for hit in getattr(retriever, tool)(questions[row["qid"]], 10)]
                    assert ("T0" in row["certificates"][tool]) is (row["passage"] in ids)

    asyncio.run(work())


def test_issued_witnesses_name_their_runs(done):
    root, _ = done
    found = [w["issued"] for r in rows_of(root) for w in r["certificates"].values() if "issued" in w]
    assert found and all(set(w["runs"]) <= {"vanilla", "arag"} for w in found)


def test_the_summary_says_what_each_run_missed(done):
    root, summary = done
    assert json.loads((root / certifying.SUMMARY).read_text(encoding="utf-8")) == json.loads(json.dumps(summary))
    assert summary["rules"]["ks"] == KS
    assert summary["shares"]["musique"]["lsa-passages"]["all"]["passages"] == 6
    runs = summary["runs"]["musique"]
    assert set(runs) == {"direct", "vanilla", "arag"}, "runs that were not answered are not there"
    assert runs["direct"]["small"]["excuse"] == "no search recorded"
    assert runs["vanilla"]["small"]["tools"] == ["dense"] and runs["vanilla"]["small"]["k"] == 3
    assert runs["arag"]["small"]["tools"] == ["keyword_search", "semantic_search"]
    whole = runs["vanilla"]["small"]["groups"]["all"]
    records = list(jsonl.read(root / "results/runs/vanilla/musique/small.jsonl"))
    lost = sum(p not in {h["chunk_id"] for h in r["retrieved"]} for r in records for p in ("p0", "p1"))
    assert whole["missing"] == lost == sum(whole[fate]["count"] for fate in certifying.reachability.FATES)
    assert "6 gold passages at k = 5" in certifying.said(summary)


def test_the_same_bytes_again_and_no_model_and_no_live_vector_is_needed(done, monkeypatch):
    root, _ = done
    before = {p: p.read_bytes() for p in sorted((root / "results").rglob("*")) if p.is_file()}
    monkeypatch.setenv("MULTIHOP_HOME", str(root / "home"))
    monkeypatch.setenv("MULTIHOP_LIVE", "never")
    certified(root)
    assert before == {p: p.read_bytes() for p in sorted((root / "results").rglob("*")) if p.is_file()}


def test_recording_asks_for_every_vector_that_the_stage_wants(done, monkeypatch, tmp_path):
    root, _ = done

    async def touched(work: str) -> set[tuple[str, ...]]:
        monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / work))
        async with opened(config.load(root / "params.yaml"), root) as session:
            session.store.track()
            if work == "stage":
                certifying.certify_all(session)
            else:
                of = {(run, "musique", s): found for run, s, found in certifying.cells(session, "musique")}
                certifying.embed_queries(session, "musique", of)
            return {key for key in session.store.touched if key[0] == "vector"}

    wanted = asyncio.run(touched("stage"))
    assert wanted and wanted <= asyncio.run(touched("recording"))


def test_both_corpus_variants_get_an_index_and_certificates(tmp_path, monkeypatch):
    root = make_project(tmp_path / "project", 2, certificates=CERTIFICATES)
    monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / "home"))
    text = "\n\n".join(f"{title}\n{body}" for title, body in WORLD)
    spans, at = [], 0
    for i, (title, body) in enumerate(WORLD):
        end = at + len(f"{title}\n{body}")
        spans.append({"passage_id": f"p{i}", "start": at, "end": end})
        at = end + 2
    chunks = root / "data/prepared/musique/chunks/chunk1000.jsonl"
    halves = [{"id": "c0", "text": text, "spans": spans[:6]}, {"id": "c1", "text": text, "spans": spans[6:]}]
    jsonl.write(chunks, halves)
    write_params(root, params_for(certificates=CERTIFICATES | {"corpora": ["passages", "chunk1000"]}))

    async def work() -> dict[str, Any]:
        async with opened(config.load(root / "params.yaml"), root) as session:
            stages.index(session, "musique")
            return certifying.certify_all(session)

    assert list(asyncio.run(work())["shares"]["musique"]) == ["lsa-passages", "lsa-chunk1000"]
    for row in rows_of(root, "lsa-chunk1000"):
        assert row["certificates"]["dense"]["T0"]["rank"] <= 2, "one of two chunks"


def test_no_gold_no_run_and_nothing_to_certify(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / "home"))
    root = make_project(tmp_path / "project", 1, certificates=CERTIFICATES)
    path = root / "data/prepared/musique/gold.jsonl"
    gold = list(jsonl.read(path))
    assert certified(root)["runs"] == {"musique": {}}, "no run was answered yet"
    jsonl.write(path, [row | {"supporting": []} for row in gold])
    summary = certified(root)
    assert rows_of(root) == [] and summary["shares"]["musique"]["lsa-passages"] == {}
    assert "of 0 gold passages" in certifying.said(summary)
    write_params(root, params_for(certificates={"corpora": []}))
    assert certified(root)["shares"] == {"musique": {}}
    write_params(root, params_for(certificates=CERTIFICATES))
    jsonl.write(path, [row | {"supporting": ["p99"]} for row in gold])
    with pytest.raises(DataError, match="p99"):
        certified(root)


def test_a_damaged_record_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / "home"))
    root = make_project(tmp_path / "project", 1, certificates=CERTIFICATES)
    jsonl.write(root / "results/runs/vanilla/musique/small.jsonl", [{"qid": "0"}])
    with pytest.raises(DataError, match="row 1: not a run record"):
        certified(root)


def test_a_missing_index_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MULTIHOP_HOME", str(tmp_path / "home"))
    root = make_project(tmp_path / "project", 1, certificates=CERTIFICATES)
    (root / "data/index/musique/lsa-passages/meta.json").unlink()
    with pytest.raises(DataError, match="index stage"):
        certified(root)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"tools": ["grep"]}, "grep"),
        ({"ks": []}, "ks"),
        ({"ks": [5, 5]}, "twice"),
        ({"embedders": ["lsb"]}, "lsa"),
        ({"asked_share": 2.0}, "asked_share"),
        ({"asked": 0.6}, "asked_share"),
    ],
)
def test_wrong_params_are_named(block, said):
    with pytest.raises(ConfigError, match=said):
        config.parse(params_for(certificates=block))


def test_every_profile_says_what_is_certified():
    for path in (REPO / "params.yaml", *sorted((REPO / "profiles").glob("*.yaml"))):
        assert "certificates" in config.load(path).model_fields_set, path.name
