from __future__ import annotations

import gzip
import json
import ssl
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, Optional
from unittest import mock

from polar_rl import Client, PolarError, _transport
from polar_rl.types import SubmitRequest

from .support import Answer, HurriedClock, Request, ScriptedServer, answer, hang_up

TASK: SubmitRequest = {"task_id": "a/b", "instruction": "", "agent": {"harness": "pi"}}
HEALTHY = answer(200, {"status": "ok", "nodes": 1})


def connect(server: ScriptedServer, **options: Any) -> tuple[Client, HurriedClock]:
    clock = HurriedClock()
    return Client(server.url, options.pop("token", None), clock=clock, **options), clock


class Calls(unittest.TestCase):
    def test_a_request_has_the_token_and_an_encoded_path(self) -> None:
        with ScriptedServer(answer(200, {"task_id": "a/b"})) as server:
            client, _ = connect(server, token="s3cret")
            client.get_task("a/b {x}", wait=0.5, results="reference")
            client.list_sessions(status=["ERROR", "TIMEOUT"])
            client.cancel_task("é", register_if_missing=True)
        first, second, third = server.requests
        self.assertEqual(first.target, "/rollout/task/a%2Fb%20%7Bx%7D?wait=0.5&results=reference")
        self.assertEqual(first.headers["authorization"], "Bearer s3cret")
        self.assertEqual(second.target, "/sessions?status=ERROR&status=TIMEOUT")
        self.assertEqual((third.method, third.target), ("DELETE", "/rollout/task/%C3%A9?register_if_missing=true"))
        self.assertEqual([request.body for request in server.requests], [b"", b"", b""])

    def test_all_tries_of_a_submit_have_the_same_idempotency_key(self) -> None:
        with ScriptedServer(hang_up, answer(503, {}), answer(200, {"task_id": "a/b", "status": "running"})) as server:
            client, _ = connect(server)
            self.assertEqual(client.submit(TASK), "a/b")
            self.assertEqual(client.submit(TASK, key="mine"), "a/b")
        keys = [request.headers["idempotency-key"] for request in server.requests]
        self.assertEqual(len(set(keys[:3])), 1)
        self.assertEqual(keys[3], "mine")
        self.assertEqual({request.headers["x-polar-strict"] for request in server.requests}, {"true"})
        self.assertEqual(json.loads(server.requests[0].body), TASK)

    def test_an_optional_body_is_an_empty_object(self) -> None:
        with ScriptedServer(answer(200, {})) as server:
            connect(server)[0].retry_task("t")
            connect(server)[0].retry_session("s")
        self.assertEqual([request.body for request in server.requests], [b"{}", b""])

    def test_a_path_parameter_that_urls_resolve_is_refused(self) -> None:
        with ScriptedServer(HEALTHY) as server:
            for task_id in ("", ".", "..", "\ud800"):
                with self.assertRaises(PolarError) as caught:
                    connect(server)[0].get_task(task_id)
                self.assertEqual(caught.exception.param, "path.task_id")
        self.assertEqual(server.requests, [])

    def test_a_compressed_answer_is_decompressed(self) -> None:
        body = json.dumps({"status": "ok", "nodes": 2}).encode()
        with ScriptedServer(answer(200, gzip.compress(body), {"content-encoding": "gzip"})) as server:
            self.assertEqual(connect(server)[0].get_health()["nodes"], 2)

    def test_compression_is_requested_from_other_machines_only(self) -> None:
        for url, coding in [("http://127.0.0.1:1", "identity"), ("http://[::1]", "identity"), ("http://a.test", "gzip")]:
            self.assertEqual(Client(url)._transport._headers["Accept-Encoding"], coding)


class Errors(unittest.TestCase):
    def catch(self, reply: Answer) -> PolarError:
        with ScriptedServer(reply) as server, self.assertRaises(PolarError) as caught:
            connect(server, retry_seconds=0)[0].get_task("t")
        return caught.exception

    def test_the_code_of_the_server_has_blame_and_boundary(self) -> None:
        problem = {"loc": ["body", "agent"], "msg": "missing", "type": "missing"}
        body = {"error": {"code": "request.malformed", "message": "No agent.", "param": "body.agent"}, "detail": [problem]}
        error = self.catch(answer(422, body))
        self.assertEqual((error.code, error.status, error.param), ("request.malformed", 422, "body.agent"))
        self.assertEqual((error.blame, error.retryable, error.boundary), ("caller", False, "request"))
        self.assertEqual(error.problems, [problem])
        self.assertEqual(str(error), "No agent. (request.malformed)")

    def test_errors_of_other_servers_get_a_code_by_status(self) -> None:
        cases: list[tuple[int, Any, str, str]] = [
            (409, {"detail": "still running"}, "request.conflict", "still running"),
            (404, b"<html>nginx</html>", "request.not-found", "nginx"),
            (418, {"error": {"code": "of.the-future", "message": "teapot"}}, "request.malformed", "teapot"),
            (500, [1], "server.failed", "500"),
            (302, b"", "request.malformed", "302"),
            (502, b"[" * 100_000, "server.failed", "502"),
        ]
        for status, body, code, text in cases:
            error = self.catch(answer(status, body))
            self.assertEqual((error.code, error.status), (code, status))
            self.assertIn(text, error.message)

    def test_an_answer_that_is_not_json_is_a_bad_answer(self) -> None:
        self.assertEqual(self.catch(answer(200, b"<html>")).code, "server.bad-answer")
        self.assertEqual(self.catch(answer(200, b"{}", {"content-encoding": "br"})).code, "server.bad-answer")


class RetriedCalls(unittest.TestCase):
    def test_delays_grow(self) -> None:
        with ScriptedServer(hang_up, answer(503, b""), answer(502, b""), HEALTHY) as server:
            client, clock = connect(server)
            self.assertEqual(client.get_health()["nodes"], 1)
        self.assertEqual(clock.delays, [0.2, 0.4, 0.8])

    def test_a_cut_body_is_read_again(self) -> None:
        whole = HEALTHY
        for cut in range(len(whole(mock.Mock()))):
            with ScriptedServer(lambda request: whole(request)[:cut], whole) as server:
                self.assertEqual(connect(server)[0].get_health(), {"status": "ok", "nodes": 1})
            self.assertEqual(len(server.requests), 2)

    def test_retry_after_is_respected(self) -> None:
        with ScriptedServer(answer(429, b"", {"retry-after": "7"}), HEALTHY) as server:
            client, clock = connect(server)
            client.get_health()
        self.assertEqual(clock.delays, [7.0])

    def test_a_retry_after_beyond_the_limit_is_raised(self) -> None:
        with ScriptedServer(answer(429, b"", {"retry-after": "70"})) as server, self.assertRaises(PolarError) as caught:
            connect(server)[0].get_health()
        self.assertEqual((caught.exception.code, caught.exception.retry_after_seconds), ("request.over-quota", 70))
        self.assertEqual(len(server.requests), 1)

    def test_tries_end_with_the_time_limit(self) -> None:
        with ScriptedServer(hang_up) as server:
            client, clock = connect(server, retry_seconds=10)
            with self.assertRaises(PolarError) as caught:
                client.get_health()
        self.assertEqual(caught.exception.code, "server.unreachable")
        self.assertIn("/health", caught.exception.message)
        self.assertLessEqual(sum(clock.delays), 10)
        self.assertEqual(len(server.requests), len(clock.delays) + 1)

    def test_a_request_that_is_not_idempotent_is_sent_once(self) -> None:
        with ScriptedServer(hang_up) as server, self.assertRaises(PolarError):
            connect(server)[0].retry_session("s")
        self.assertEqual(len(server.requests), 1)

    def test_a_request_that_was_never_sent_is_repeated(self) -> None:
        with ScriptedServer() as server:
            pass
        client, clock = connect(server, retry_seconds=1)
        with self.assertRaises(PolarError) as caught:
            client.retry_session("s")
        self.assertEqual(caught.exception.code, "server.unreachable")
        self.assertGreater(len(clock.delays), 1)

    def test_a_final_503_is_not_repeated(self) -> None:
        body = {"error": {"code": "request.no-node", "message": "No node."}, "detail": ""}
        with ScriptedServer(answer(503, body)) as server, self.assertRaises(PolarError):
            connect(server)[0].submit(TASK)
        self.assertEqual(len(server.requests), 1)

    def test_a_server_that_does_not_answer_times_out(self) -> None:
        def stall(request: Request) -> bytes:
            time.sleep(0.5)
            return b""

        with ScriptedServer(stall, HEALTHY) as server:
            client, clock = connect(server, timeout=0.1)
            self.assertEqual(client.get_health()["nodes"], 1)
        self.assertEqual(clock.delays, [0.2])


LINES = [{"session_id": f"s{i}", "text": "é\u2028" * i} for i in range(4)]


def stream(request: Request, coding: str) -> bytes:
    """The lines after `skip`, as chunks of an answer without a length."""
    skip = int(request.target.split("skip=")[1].split("&")[0])
    data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES[skip:]).encode()
    data = gzip.compress(data) if coding == "gzip" else data
    head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {coding}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunks = [data[i : i + 50] for i in range(0, len(data), 50)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


class Streams(unittest.TestCase):
    def test_lines_resume_after_a_cut_at_any_byte(self) -> None:
        for coding in ("identity", "gzip"):
            length = len(stream(Request(b"GET /?skip=0 HTTP/1.1", b""), coding))
            # The line break after the last chunk carries nothing.
            for cut in range(length - 2):
                with ScriptedServer(lambda request: stream(request, coding)[:cut], lambda r: stream(r, coding)) as server:
                    results = list(connect(server)[0].stream_task_results("t"))
                self.assertEqual(results, LINES, f"{coding}, cut after {cut} bytes")

    def test_a_silent_stream_is_opened_again_where_it_stopped(self) -> None:
        def stall(request: Request) -> bytes:
            time.sleep(0.4)
            return b""

        with mock.patch.object(_transport, "SILENCE_SECONDS", 0.1):
            with ScriptedServer(stall, lambda request: stream(request, "identity")) as server:
                client, clock = connect(server)
                self.assertEqual(list(client.stream_task_results("t", follow=True)), LINES)
        self.assertEqual(clock.delays, [])

    def test_events_resume_after_the_last_event(self) -> None:
        def frames(request: Request) -> bytes:
            last = int(request.headers.get("last-event-id", "0"))
            events = [b'id: %d\ndata: {"type":"x",\ndata: "ts":%d}\n\n' % (i, i) for i in range(last + 1, last + 3)]
            data = b": comment\n" + b"".join(events) + b"id: 9\ndata: {"
            return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(data), data)

        with ScriptedServer(frames) as server:
            events = connect(server)[0].stream_events()
            seen = [next(events) for _ in range(5)]
            events.close()
        self.assertEqual([event.id for event in seen], ["1", "2", "3", "4", "5"])
        self.assertEqual([event.data["ts"] for event in seen], [1, 2, 3, 4, 5])

    def test_a_failure_of_the_server_ends_a_stream(self) -> None:
        body = {"error": {"code": "request.not-found", "message": "No task."}, "detail": ""}
        with ScriptedServer(answer(404, body)) as server, self.assertRaises(PolarError) as caught:
            list(connect(server)[0].stream_task_results("t"))
        self.assertEqual(caught.exception.code, "request.not-found")

    def test_a_cut_file_raises(self) -> None:
        whole = answer(200, b"0123456789")
        with ScriptedServer(lambda request: whole(request)[:-3]) as server:
            chunks = connect(server)[0].get_artifact("s", path="log")
            with self.assertRaises(PolarError):
                b"".join(chunks)


class Settings(unittest.TestCase):
    def client(self, environment: dict[str, str], *args: str, folder: str = "missing") -> Client:
        with mock.patch.dict("os.environ", environment, clear=True):
            return Client(*args, folder=folder)

    def header(self, client: Client) -> Optional[str]:
        return client._transport._headers.get("Authorization")

    def test_arguments_precede_the_environment(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "token").write_text("of-file\n")
            file = str(Path(folder) / "token")
            both = {"POLAR_SERVER_URL": "http://a.test", "POLAR_TOKEN": "of-variable", "POLAR_TOKEN_FILE": file}
            self.assertEqual(self.header(self.client(both)), "Bearer of-variable")
            self.assertEqual(self.header(self.client(both, "http://b.test", "mine")), "Bearer mine")
            self.assertEqual(self.header(self.client({"POLAR_TOKEN_FILE": file}, "http://b.test")), "Bearer of-file")

    def test_the_token_of_a_folder_is_sent_to_its_server_only(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "server.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
            (Path(folder) / "tokens.json").write_text('{"trainer": "own", "node": "n", "read": "r"}')
            self.assertEqual(self.header(self.client({}, folder=folder)), "Bearer own")
            self.assertIsNone(self.header(self.client({}, "http://a.test", folder=folder)))

    def test_unusable_settings_are_refused(self) -> None:
        with self.assertRaises(PolarError):
            self.client({})
        for url in ("a.test", "ftp://a.test", "http://x:token@a.test", "http://a.test?x=1"):
            with self.assertRaises(ValueError):
                Client(url)
        with self.assertRaises(ValueError):
            Client("http://a.test", "two\r\nlines")


class Certificates(unittest.TestCase):
    def test_a_certificate_of_an_unknown_authority_is_refused_at_once(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            key, cert = f"{folder}/key.pem", f"{folder}/cert.pem"
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
            names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
            try:
                subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
            except (OSError, subprocess.CalledProcessError) as error:
                self.skipTest(f"openssl cannot make a certificate: {error}")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(cert, key)
            with TlsServer(context, HEALTHY) as secure:
                url = secure.url.replace("http://127.0.0.1", "https://localhost")
                clock = HurriedClock()
                with self.assertRaises(PolarError) as caught:
                    Client(url, clock=clock).get_health()
                self.assertIn("certificate", caught.exception.message)
                self.assertEqual(clock.delays, [])
                trusting = Client(url, ssl_context=ssl.create_default_context(cafile=cert), clock=clock)
                self.assertEqual(trusting.get_health()["nodes"], 1)


class TlsServer(ScriptedServer):
    def __init__(self, context: ssl.SSLContext, *answers: Answer) -> None:
        self._context = context
        super().__init__(*answers)

    def serve(self, connection: Any) -> None:
        with self._context.wrap_socket(connection, server_side=True) as secure:
            super().serve(secure)
