"""What serves the pages is loaded for whoever asks first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio

from gateway.observe.http import bind_http, serve_http_when_asked

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


async def _page(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"page"})
    else:
        while True:
            what = (await receive())["type"]
            await send({"type": f"{what}.complete"})
            if what == "lifespan.shutdown":
                return


async def _asked(port: int) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        answer = b""
        try:
            async for chunk in stream:
                answer += chunk
        except trio.BrokenResourceError:  # closed with our question unread
            pass
        return answer


async def test_what_cannot_be_loaded_is_tried_again_for_the_next_one(capsys: pytest.CaptureFixture[str]) -> None:
    tries = 0

    def make() -> ASGIApp:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ImportError("half of another version")
        return _page

    sock, stop = bind_http("127.0.0.1", 0), trio.Event()
    with trio.fail_after(60), sock:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: serve_http_when_asked(make, sock, stop=stop))
            answers = [await _asked(sock.getsockname()[1]) for _one in range(4)]
            stop.set()
    assert answers[:2] == [b"", b""]
    assert all(answer.endswith(b"page") for answer in answers[2:])
    assert tries == 3
    said = capsys.readouterr()
    assert (said.out + said.err).count("half of another version") >= 2
