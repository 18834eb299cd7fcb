"""Published data sets: downloaded once from a local server, checked, and then used offline."""

import hashlib
import http.server
import json
import threading

import pytest

from grpojax.errors import InputError
from grpojax.tasks import problems
from grpojax.tasks.problems import PUBLISHED, Published, load_problems

ROWS = [{"question": f"What is {k} + {k}?", "answer": f"...\n#### {2 * k}"} for k in range(200)]
CONTENT = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends the server's `body` under a Content-Length of the whole content; counts requests."""

    def do_GET(self):
        self.server.requests += 1
        if self.server.body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def running_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(running_server, monkeypatch, tmp_path):
    running_server.body, running_server.requests = CONTENT, 0
    publish(monkeypatch, tmp_path, f"http://127.0.0.1:{running_server.server_port}/train.jsonl")
    return running_server


@pytest.fixture
def cached(tmp_path):
    """The path of the file in the cache."""
    (tmp_path / "datasets").mkdir()
    return tmp_path / "datasets" / "gsm8k-train.jsonl"


def publish(monkeypatch, cache, url):
    monkeypatch.setenv("GRPOJAX_CACHE", str(cache))
    monkeypatch.setitem(PUBLISHED, "gsm8k-train", Published("gsm8k-train.jsonl", url, BLOB))


def test_downloaded_once_then_used_without_a_request(server, tmp_path):
    first = load_problems("gsm8k", "train")
    assert [(p.text, p.answer) for p in first[:2]] == [("What is 0 + 0?", "0"), ("What is 1 + 1?", "2")]
    assert len(first) == 200
    assert load_problems("gsm8k", "train", limit=7) == first[:7]
    assert server.requests == 1
    assert [path.name for path in (tmp_path / "datasets").iterdir()] == ["gsm8k-train.jsonl"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (CONTENT[:1000], r"IncompleteRead\(1000 bytes read"),
        (CONTENT[:5000] + b"9999" + CONTENT[5004:], "the content differs from the published file"),
        (None, "HTTP Error 404"),
    ],
)
def test_a_failed_download_leaves_no_file_and_says_what_to_do(server, cached, body, reason):
    server.body = body
    with pytest.raises(InputError, match=rf"could not download http.*{reason}.*save the file as .*{cached.name} your"):
        load_problems("gsm8k", "train")
    assert list(cached.parent.iterdir()) == []
    server.body = CONTENT
    assert len(load_problems("gsm8k", "train")) == 200


def test_a_changed_cached_file_is_refused_and_kept(server, cached):
    cached.write_bytes(CONTENT[:-10])
    with pytest.raises(InputError, match=r"differs from the published file .*delete it to download it again, or .*--"):
        load_problems("gsm8k", "train")
    assert cached.read_bytes() == CONTENT[:-10]
    assert server.requests == 0


def test_no_network(monkeypatch, tmp_path):
    publish(monkeypatch, tmp_path, "http://127.0.0.1:1/train.jsonl")
    with pytest.raises(InputError, match=r"could not download .*refused.*your own file with --dataset path\.jsonl"):
        load_problems("gsm8k", "train")


def test_a_manually_saved_file_needs_no_network(monkeypatch, tmp_path, cached):
    publish(monkeypatch, tmp_path, "http://127.0.0.1:1/train.jsonl")
    cached.write_bytes(CONTENT)
    assert len(load_problems("gsm8k", "train")) == 200


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
    requested = []
    monkeypatch.setattr(problems, "_downloaded", lambda published: requested.append(published) or path)
    load_problems(source, split)
    assert requested == [PUBLISHED[name]]


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
