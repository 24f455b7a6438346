"""The client against a scripted server: keys, failures, retries, replay, concurrency, money."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from project_fixture import URL_ENV, make_client
from scripted_server import DROP, OVERFLOW, QUOTA, Fail, Say, ScriptedServer, in_turn

from multihop.errors import BudgetExceeded, ConfigError, EndpointError, ReplayMiss
from multihop.llm.client import ChatClient, ContextOverflow, NoAnswer, Refused, Reply
from multihop.store import Store
from multihop.types import Usage

pytestmark = pytest.mark.usefixtures("quick_retries")
HELLO = [{"role": "user", "content": "hello"}]
HI = Say("hi there")


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def ask(client: ChatClient, *texts: str, **options: Any) -> list[Reply]:
    """The replies to all texts, asked at once."""

    async def work() -> list[Reply]:
        messages = [[{"role": "user", "content": t}] for t in texts or ("hello",)]
        try:
            return await asyncio.gather(*(client.chat(m, **{"role": "reader"} | options) for m in messages))
        finally:
            await client.endpoints.close()

    return asyncio.run(work())


# -- a reply, and what is sent


def test_a_reply_and_its_usage(home, serve):
    server = serve(HI)
    [reply] = ask(make_client(home))
    assert reply == Reply("hi there", Usage(1, 1, 2), "stop")
    assert server.bodies == [{"model": "scripted", "messages": HELLO, "temperature": 0.0, "max_tokens": 300, "seed": 0}]


def test_sampling_tools_and_format_are_sent(home, serve):
    server = serve(HI)
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    form = {"type": "json_object"}
    client = make_client(home, reader={"temperature": 0.3, "max_tokens": 50})
    ask(client, temperature=1.0, sample=2, max_tokens=999, tools=tools, response_format=form)
    ask(client, max_tokens=9)
    first, second = server.bodies
    assert (first["temperature"], first["seed"], first["max_tokens"]) == (1.0, 2, 50)
    assert (first["tools"], first["response_format"]) == (tools, form)
    assert (second["temperature"], second["max_tokens"], "tools" in second) == (0.3, 9, False)


def test_what_is_stored_is_asked_once_and_samples_are_told_apart(home, serve):
    server = serve(HI)
    client = make_client(home)
    first, again, other = ask(client), ask(client), ask(client, sample=1, temperature=1.0)
    assert first == again == other and len(server.bodies) == 2
    assert ask(client, sample=2, temperature=1.0) == first and len(server.bodies) == 3
    assert [row["live"] for row in client.log.rows] == [True, False, True, True]


def test_at_temperature_0_there_is_one_draw(home, serve):
    server = serve(HI)
    client = make_client(home)
    assert ask(client) == ask(client, sample=1) and [b["seed"] for b in server.bodies] == [0]


def test_identical_requests_at_once_are_asked_once(home, serve):
    server = serve(HI, delay=0.1)
    replies = ask(make_client(home), *["same"] * 6, "other")
    assert len(replies) == 7 and sorted(server.counts.values()) == [1, 1]


def test_the_second_of_two_asks_itself_where_the_first_failed(home, serve):
    server = serve(in_turn([Fail(400, "bad", "no")], then=lambda body: Say("late")), delay=0.05)
    client = make_client(home)

    async def work() -> list[Any]:
        both = await asyncio.gather(*(client.chat(HELLO, role="reader") for _ in "ab"), return_exceptions=True)
        await client.endpoints.close()
        return both

    results = asyncio.run(work())
    assert sorted(type(r).__name__ for r in results) == ["NoAnswer", "Reply"] and len(server.bodies) == 2


def test_where_another_process_was_first_its_answer_is_the_one(home, serve):
    """Else the record would hold an answer that no replay gives."""
    client = make_client(home)
    other = Store(home / "store.sqlite")

    def slow(body):
        request = {k: v for k, v in body.items() if k != "seed"} | {"sample": body["seed"]}
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        first = {"content": "first", "finish_reason": "stop", "tool_calls": [], "usage": usage}
        other.put(json.loads(json.dumps(request)), first)
        return Say("second")

    serve(slow)
    assert [ask(client)[0].text, ask(client)[0].text] == ["first", "first"]


def test_what_is_on_the_wire_when_a_run_stops_is_heard_out_and_stored(home, serve):
    server = serve(Say("late"), delay=0.2)
    client = make_client(home, {"MULTIHOP_WORKERS": "2"})

    async def work() -> list[Any]:
        asked = [[{"role": "user", "content": f"q{n}"}] for n in range(5)]
        asking = [asyncio.create_task(client.chat(m, role="reader")) for m in asked]
        while len(server.bodies) < 2:
            await asyncio.sleep(0.01)
        for task in asking:
            task.cancel()
        results = await asyncio.gather(*asking, return_exceptions=True)
        await client.endpoints.close()
        return results

    assert all(isinstance(result, asyncio.CancelledError) for result in asyncio.run(work()))
    assert len(server.bodies) == len(list(client.store.rows())) == 2  # and nothing new was asked
    assert client.meter.live_calls == 5 and client.meter.spent.calls == 2 and client.meter.in_flight == 0


# -- nothing to ask


def test_no_key_names_the_variable(home, serve):
    serve(HI)
    with pytest.raises(ReplayMiss, match="SOME_KEY"):
        ask(make_client(home, endpoint={"key_env": "SOME_KEY"}))


def test_no_address_names_the_variable(home):
    with pytest.raises(ReplayMiss, match=URL_ENV):
        ask(make_client(home))


def test_wrong_key(home, serve, monkeypatch):
    server = serve(HI, key="right")
    monkeypatch.setenv("SOME_KEY", "wrong")
    with pytest.raises(EndpointError, match=r"refuses the key.*SOME_KEY"):
        ask(make_client(home, endpoint={"key_env": "SOME_KEY"}))
    assert len(server.bodies) == 1
    monkeypatch.setenv("SOME_KEY", "right")
    assert ask(make_client(home, endpoint={"key_env": "SOME_KEY"}))[0].text == "hi there"


def test_unreachable_endpoint(home, monkeypatch):
    with ScriptedServer() as gone:
        monkeypatch.setenv(URL_ENV, gone.url)
    with pytest.raises(EndpointError, match=f"can't be reached.*{URL_ENV}"):
        ask(make_client(home))


def test_unknown_model(home, serve):
    serve(HI, models=("another",))
    with pytest.raises(EndpointError, match=r"does not know the model 'scripted'.*readers.scripted.model"):
        ask(make_client(home))


def test_the_embedded_model_where_it_is_not_installed_names_both_ways_on(home):
    client = make_client(home, endpoint={"kind": "embedded", "url_env": None}, model="absent.gguf")
    with pytest.raises(ReplayMiss, match=r"make model.*OPENAI_API_KEY") as error:
        ask(client)
    assert "\n" not in str(error.value)


def test_a_proxy_in_the_environment_does_not_stand_before_loopback(home, serve, monkeypatch):
    serve(HI)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert ask(make_client(home))[0].text == "hi there"


# -- retries


def test_a_used_up_quota_is_not_retried(home, serve):
    server = serve(QUOTA)
    with pytest.raises(EndpointError, match="quota"):
        ask(make_client(home))
    assert len(server.bodies) == 1


@pytest.mark.parametrize("outcome", [Fail(429, "rate_limit_exceeded"), Fail(500), Fail(503), DROP])
def test_passing_trouble_is_retried(home, serve, outcome):
    server = serve(in_turn([outcome, outcome], then=lambda body: Say("at last")))
    client = make_client(home)
    assert ask(client)[0].text == "at last"
    assert len(server.bodies) == 3 and client.meter.live_calls == 1


def test_lasting_trouble_is_an_error_and_is_not_stored(home, serve):
    server = serve(Fail(500))
    client = make_client(home)
    with pytest.raises(Exception, match="500"):
        ask(client)
    assert len(server.bodies) == 7 and list(client.store.rows()) == []


def test_a_bad_request_is_not_retried(home, serve):
    server = serve(Fail(400, "invalid_request", "unknown field"))
    with pytest.raises(Exception, match="unknown field"):
        ask(make_client(home))
    assert len(server.bodies) == 1


PASSAGE = "no such field in 'The context window of the harbour exceeds its length; insufficient_quota, it says'"


@pytest.mark.parametrize("status", [400, 402, 422])
def test_an_error_that_quotes_a_passage_is_judged_by_what_the_endpoint_says(home, serve, status):
    serve(Fail(status, "invalid_request", "1 validation error. " + "The input is " + "x" * 200 + PASSAGE))
    client = make_client(home)
    with pytest.raises(NoAnswer, match="turns the request down"):
        ask(client)
    assert list(client.store.rows()) == []


def test_a_passing_error_that_quotes_a_used_up_quota_is_retried(home, serve):
    server = serve(in_turn([Fail(429, "rate_limit_exceeded", PASSAGE)], then=lambda body: HI))
    assert ask(make_client(home))[0].text == "hi there" and len(server.bodies) == 2


@pytest.mark.parametrize("to", ["/v1/chat/completions/", "/login"])
def test_a_redirect_ends_in_an_answer_or_in_one_line(home, serve, monkeypatch, to):
    from scripted_server import Handler

    server, post = serve(HI), Handler.do_POST

    def redirected(handler: Handler) -> None:
        if handler.path != "/v1/chat/completions":
            return post(handler)
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.send_response(307)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(Handler, "do_POST", redirected)
    client = make_client(home)
    if to == "/login":
        with pytest.raises(EndpointError, match=r"redirects to .*/login: give its address as it is"):
            ask(client)
    else:
        assert ask(client)[0].text == "hi there" and len(server.bodies) == 1


# -- odd replies


def test_names_of_model_and_build_that_no_file_can_hold_are_mended(home, serve, monkeypatch):
    import scripted_server

    completion = scripted_server.completion
    odd = {"model": "m\ud83d" * 300, "system_fingerprint": ["no", "text"]}
    monkeypatch.setattr(scripted_server, "completion", lambda body, outcome: completion(body, outcome) | odd)
    serve(HI)
    client = make_client(home)
    ask(client)
    [row] = client.store.rows()
    assert row["response"]["model"] == "m?" * 100 and row["response"]["fingerprint"] is None


def test_null_content_is_an_empty_text(home, serve):
    serve(Say(None))
    assert ask(make_client(home))[0].text == ""


def test_usage_that_is_missing_is_estimated_and_says_so(home, serve):
    serve(Say("hi", usage=False))
    client = make_client(home)
    assert ask(client)[0].usage == Usage(1, 5, 1)
    [row] = client.store.rows()
    assert row["response"]["usage"]["estimated"] is True


def test_a_length_stop_is_a_reply_that_says_so(home, serve):
    serve(Say("cut o", finish="length"))
    reply = ask(make_client(home))[0]
    assert (reply.text, reply.finish_reason) == ("cut o", "length")


def test_tool_calls_come_as_the_model_wrote_them(home, serve):
    serve(Say(None, (("semantic_search", '{"query": "x"}'), ("read_chunk", "not json"))))
    calls = ask(make_client(home))[0].tool_calls
    assert [(c.name, c.arguments) for c in calls] == [
        ("semantic_search", '{"query": "x"}'),
        ("read_chunk", "not json"),
    ]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (Say(None, refusal="I can't help with that."), Refused),
        (Say("half an ans", finish="content_filter"), Refused),
        (Fail(400, "content_filter", "The prompt was filtered."), Refused),
        (OVERFLOW, ContextOverflow),
        (Fail(400, "", "the request exceeds the available context size. try increasing it"), ContextOverflow),
    ],
)
def test_what_the_request_itself_causes_is_stored_and_replays(home, serve, said, error):
    """Asked once, and the same without a model: a refusal or an overflow is what the endpoint has to say."""
    server = serve(said)
    client = make_client(home)
    for _ in range(2):
        with pytest.raises(error):
            ask(client)
    assert len(server.bodies) == 1
    client.store.export(home / "r.jsonl.zst")
    with pytest.raises(error):
        ask(make_client(home / "replay", {"MULTIHOP_LIVE": "never"}, layers=(home / "r.jsonl.zst",)))


# -- never, auto, always


def recording_of(home, serve) -> Any:
    serve(Say("recorded"))
    client = make_client(home / "recorder")
    ask(client)
    client.store.export(home / "r.jsonl.zst")
    return home / "r.jsonl.zst"


def test_never_replays_and_asks_nobody(home, serve):
    path = recording_of(home, serve)
    server = serve(Say("live"))
    client = make_client(home, {"MULTIHOP_LIVE": "never"}, layers=(path,))
    assert ask(client)[0].text == "recorded"
    with pytest.raises(ReplayMiss, match="MULTIHOP_LIVE=never") as error:
        ask(client, "something else")
    assert "make model" in str(error.value) and "OPENAI_API_KEY" in str(error.value) and "\n" not in str(error.value)
    assert server.bodies == [] and client.meter.live_calls == 0


def test_auto_replays_and_asks_for_the_rest(home, serve):
    path = recording_of(home, serve)
    server = serve(Say("live"))
    client = make_client(home, {"MULTIHOP_LIVE": "auto"}, layers=(path,))
    assert [ask(client)[0].text, ask(client, "something else")[0].text] == ["recorded", "live"]
    assert len(server.bodies) == 1


def test_always_opens_no_recording(tmp_path, home, serve, monkeypatch):
    from project_fixture import params_for

    from multihop import config
    from multihop.environment import Environment
    from multihop.session import Session

    path = recording_of(home, serve)
    (tmp_path / "prices.yaml").write_text("models: {}")
    for live, layers in (("always", 0), ("auto", 1), ("never", 1)):
        env = Environment.read(
            {"MULTIHOP_LIVE": live, "MULTIHOP_HOME": str(tmp_path / live), "MULTIHOP_RECORDINGS": str(path.parent)}
        )
        session = Session(config.parse(params_for()), env, tmp_path)
        assert (len(session.store.layers), session.may_ask) == (layers, live != "never")


def test_usage_is_the_same_live_and_replayed(home, serve):
    serve(Say("one two three"))
    client = make_client(home)
    assert ask(client) == ask(client)


# -- money: the scripted model costs USD 0.001 a token


def test_the_ceiling_stops_before_it_is_passed(home, serve):
    server = serve(Say("word " * 10))
    client = make_client(home, ceilings={"MULTIHOP_MAX_USD": 0.1}, reader={"max_tokens": 20})
    with pytest.raises(BudgetExceeded, match=r"MULTIHOP_MAX_USD=0.1.*stored"):
        for n in range(100):
            ask(client, f"question {n}")
    assert 1 <= len(server.bodies) < 10 and client.meter.spent_usd <= 0.1
    assert len(list(client.store.rows())) == len(server.bodies)
    assert ask(client, "question 0")[0].text.startswith("word")  # what is stored costs nothing


def test_calls_in_flight_count_against_the_ceiling(home, serve):
    """What they may cost is reserved: the others wait until they are settled."""
    now, most = Counter(), []

    def busy(body):
        now["in flight"] += 1
        most.append(now["in flight"])
        time.sleep(0.05)
        now["in flight"] -= 1
        return Say("word")

    serve(busy)
    client = make_client(home, ceilings={"MULTIHOP_MAX_USD": 0.1}, reader={"max_tokens": 30})
    assert len(ask(client, *[f"q{n}" for n in range(10)])) == 10
    assert max(most) <= 2 and client.meter.spent_usd == pytest.approx(10 * 0.002)


def test_a_call_without_usage_is_charged_its_reservation(home, serve):
    server = serve(Say("word", usage=False))
    client = make_client(home, ceilings={"MULTIHOP_MAX_USD": 0.1}, reader={"max_tokens": 30})
    with pytest.raises(BudgetExceeded):
        for n in range(20):
            ask(client, f"q{n}")
    assert len(server.bodies) <= 3


def test_a_failed_call_frees_its_reservation(home, serve):
    serve(Fail(400, "bad", "no"))
    client = make_client(home, ceilings={"MULTIHOP_MAX_USD": 0.1})
    client.reader = client.reader.model_copy(update={"max_tokens": 20})
    with pytest.raises(Exception, match="no"):
        ask(client)
    assert (client.meter.reserved_usd, client.meter.spent_usd) == (0.0, 0.0)


@pytest.mark.parametrize("ceilings", [{}, {"MULTIHOP_MAX_USD": 1.0}])
def test_a_model_without_a_price_is_not_asked(home, serve, ceilings):
    server = serve(HI)
    with pytest.raises(ConfigError, match="no price for model 'unpriced'"):
        ask(make_client(home, model="unpriced", ceilings=ceilings))
    assert server.bodies == []


# -- secrets


def test_the_key_is_in_no_store_log_or_error(home, serve, monkeypatch):
    key = "sk-very-secret-0123456789"
    monkeypatch.setenv("SOME_KEY", key)
    serve(HI, key=key)
    client = make_client(home, endpoint={"key_env": "SOME_KEY"})
    ask(client)
    client.store.export(home / "r.jsonl.zst")
    kept = json.dumps([list(client.store.rows()), client.log.rows])
    serve(HI, key="another")
    with pytest.raises(EndpointError) as error:
        ask(client, "again")
    client.store.close()
    files = b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())
    assert "hi there" in kept
    for text in (kept, str(error.value), files.decode("latin-1")):
        assert key not in text and key[-6:] not in text


def test_no_address_and_no_path_of_a_machine_is_stored(home, serve):
    server = serve(lambda body: Say("hi"))
    client = make_client(home, model="/somewhere/else/model.gguf")
    ask(client)
    [row] = client.store.rows()
    assert row["response"]["model"] == "model.gguf"
    assert server.url not in json.dumps(row["response"]) and "127.0.0.1" not in json.dumps(row)


def test_the_side_log_says_what_no_record_may(home, serve):
    serve(HI, delay=0.02)
    client = make_client(home)
    ask(client)
    ask(client)
    live, replayed = client.log.rows
    assert live["seconds"] >= 0.02 and replayed["seconds"] == 0.0
    assert set(live) == {"role", "key", "live", "seconds", "cached_tokens"} and live["key"] == replayed["key"]
