"""Published data sets: fetched once, resumed, checked, and used offline, against a server on this machine."""

import hashlib
import http.server
import json
import socket
import threading

import pytest

from grpojax.errors import InputError
from grpojax.tasks import problems
from grpojax.tasks.problems import PUBLISHED, Published, load_problems

ROWS = [{"question": f"What is {k} + {k}?", "answer": f"...\n#### {2 * k}"} for k in range(2000)]
CONTENT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves `content`; notes the Range header of each request; `cut` ends an answer after so many bytes."""

    content = CONTENT
    cut: int | None = None
    status: int | None = None
    ranged = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[str | None] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.server.ranged else 0
        body = self.server.content[start:]
        if self.server.status or (wanted and not body):
            self.send_error(self.server.status or 416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("GRPOJAX_CACHE", str(tmp_path))
    publish(monkeypatch, f"http://127.0.0.1:{server.server_port}/train.jsonl")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def publish(monkeypatch, url):
    monkeypatch.setitem(PUBLISHED, "gsm8k-train", Published("gsm8k-train.jsonl", url, BLOB))


def test_fetched_once_then_used_without_a_request(server, tmp_path):
    first = load_problems("gsm8k", "train")
    assert [(p.text, p.answer) for p in first[:2]] == [("What is 0 + 0?", "0"), ("What is 1 + 1?", "2")]
    assert len(first) == 2000
    assert load_problems("gsm8k", "train", limit=7) == first[:7]
    assert server.requests == [None]
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["gsm8k-train.jsonl"]


def test_a_cut_connection_is_resumed_where_it_stopped(server, tmp_path):
    server.cut = 1000
    with pytest.raises(InputError, match=rf"could not download .*ended {len(CONTENT) - 1000} bytes early.*run again"):
        load_problems("gsm8k", "train")
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["gsm8k-train.jsonl.part"]
    server.cut = None
    assert len(load_problems("gsm8k", "train")) == 2000
    assert server.requests == [None, "bytes=1000-"]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "gsm8k-train.jsonl.part").write_bytes(CONTENT[:500])
    server.ranged = False
    assert len(load_problems("gsm8k", "train")) == 2000


def test_a_complete_part_needs_only_its_name(server, tmp_path):
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "gsm8k-train.jsonl.part").write_bytes(CONTENT)
    assert len(load_problems("gsm8k", "train")) == 2000
    assert server.requests == [f"bytes={len(CONTENT)}-"]


def test_wrong_bytes_of_the_right_length_are_refused(server, tmp_path):
    server.content = CONTENT[:5000] + b"9999" + CONTENT[5004:]
    with pytest.raises(InputError, match=r"is not the published file, and was deleted; run again"):
        load_problems("gsm8k", "train")
    assert list((tmp_path / "datasets").iterdir()) == []


def test_a_changed_cached_file_is_refused_and_kept(server, tmp_path):
    path = tmp_path / "datasets" / "gsm8k-train.jsonl"
    path.parent.mkdir()
    path.write_bytes(CONTENT[:-10])
    with pytest.raises(
        InputError, match=r"is not the published file .*delete it to fetch it again, or use .*--dataset"
    ):
        load_problems("gsm8k", "train")
    assert path.exists()
    assert server.requests == []


def test_a_missing_page_names_the_way_out(server):
    server.status = 404
    with pytest.raises(
        InputError, match=r"could not download http.*404.*put that file at .*gsm8k-train\.jsonl by hand"
    ):
        load_problems("gsm8k", "train")


def test_no_network(monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("GRPOJAX_CACHE", str(tmp_path))
    publish(monkeypatch, f"http://127.0.0.1:{port}/train.jsonl")
    with pytest.raises(InputError, match=r"could not download .*refused.* by hand, or .*--dataset path\.jsonl"):
        load_problems("gsm8k", "train")


def test_a_file_put_there_by_hand_needs_no_network(monkeypatch, tmp_path):
    monkeypatch.setenv("GRPOJAX_CACHE", str(tmp_path))
    publish(monkeypatch, "http://127.0.0.1:1/train.jsonl")
    (tmp_path / "datasets").mkdir()
    (tmp_path / "datasets" / "gsm8k-train.jsonl").write_bytes(CONTENT)
    assert len(load_problems("gsm8k", "train")) == 2000


@pytest.mark.parametrize(
    ("source", "split", "name"),
    [
        ("gsm8k", "train", "gsm8k-train"),
        ("gsm8k", "eval", "gsm8k-test"),
        ("math", "train", "math"),
        ("math", "eval", "math500"),
        ("math500", "train", "math500"),
        ("math500", "eval", "math500"),
    ],
)
def test_which_file_a_split_is(monkeypatch, tmp_path, source, split, name):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "p", "answer": "1"}\n')
    asked = []
    monkeypatch.setattr(problems, "_cached", lambda published: asked.append(published) or path)
    load_problems(source, split)
    assert asked == [PUBLISHED[name]]


def test_published_addresses_are_pinned():
    for published in PUBLISHED.values():
        assert any(len(part) == 40 for part in published.url.split("/"))  # a commit, not a branch
        assert len(published.blob) == 40


@pytest.mark.parametrize(
    ("name", "path"),
    [("gsm8k-train", "gsm8k/train.jsonl"), ("gsm8k-test", "gsm8k/test.jsonl"), ("math500", "math500_test.json")],
)
def test_published_ids_are_those_of_the_real_files(data_folder, name, path):
    content = (data_folder / path).read_bytes()
    assert hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == PUBLISHED[name].blob
