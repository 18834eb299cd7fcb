"""Command lines: settings as flags, typed with _ or -, and one line for every argument that cannot be parsed."""

import dataclasses

import pytest

from grpojax.errors import InputError, RunError
from grpojax.flags import Parser, exit_code, parse_settings
from grpojax.settings import setting


@dataclasses.dataclass(frozen=True)
class Settings:
    """One field of each kind."""

    max_steps: int = setting(3, "how many, at most 100 %")
    rate: float | None = setting(None, "how fast")
    name: str | None = setting(None, "what")
    keep_all: bool = setting(False, "whether")
    strict: bool | None = setting(None, "whether, or by default")
    mode: str = setting("slow", "which", choices=("slow", "fast"))


def parse(*argv):
    return parse_settings(Settings, list(argv), "prog", "what it does")[0]


def test_defaults_stay():
    assert parse() == Settings()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--max-steps", "8"], {"max_steps": 8}),
        (["--max_steps", "8"], {"max_steps": 8}),
        (["--max_steps=8"], {"max_steps": 8}),
        (["--max-steps=8"], {"max_steps": 8}),
        (["--rate", "-0.001"], {"rate": -0.001}),
        (["--rate", "-1e-3"], {"rate": -0.001}),
        (["--rate", "2"], {"rate": 2.0}),
        (["--name", "a_b"], {"name": "a_b"}),
        (["--name=a_b--c_d"], {"name": "a_b--c_d"}),
        (["--keep_all"], {"keep_all": True}),
        (["--no_keep_all"], {"keep_all": False}),
        (["--strict"], {"strict": True}),
        (["--no-strict"], {"strict": False}),
        (["--mode", "fast"], {"mode": "fast"}),
        (["--max-steps", "8", "--max-steps", "9"], {"max_steps": 9}),
    ],
)
def test_flags_as_they_may_be_typed(argv, expected):
    assert parse(*argv) == Settings(**expected)


def test_typed_flags_are_distinguished_from_defaults():
    assert parse_settings(Settings, ["--max-steps", "3", "--no-strict"], "prog", "")[1] == {"max_steps", "strict"}


def test_without_arguments_the_command_line_is_read(monkeypatch):
    monkeypatch.setattr("sys.argv", ["prog", "--max_steps", "5"])
    assert parse_settings(Settings, None, "prog", "")[0].max_steps == 5


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-steps", "abc"], r"argument --max-steps: invalid int value: 'abc'; see prog --help\."),
        (["--max-steps", "1.5"], r"argument --max-steps: invalid int value: '1\.5'; see prog --help\."),
        (["--rate", "quick"], r"argument --rate: invalid float value: 'quick'; see prog --help\."),
        (["--max-steps"], r"argument --max-steps: expected one argument; see prog --help\."),
        (
            ["--mode", "fats"],
            r"argument --mode: invalid choice: 'fats' \(choose from .*slow.*fast.*\); see prog --help\.",
        ),
        (
            ["--max-step", "3"],
            r"unknown argument '--max-step'; prog --help lists the known ones\. Did you mean '--max-steps'\?",
        ),
        (["--keep_al"], r"unknown argument '--keep-al'; .* Did you mean '--keep-all'\?"),
        (["--zzzzzz"], r"unknown argument '--zzzzzz'; prog --help lists the known ones\.$"),
        (["extra"], r"unknown argument 'extra'; prog --help lists the known ones\."),
    ],
)
def test_arguments_that_cannot_be_parsed_are_named_in_one_line(argv, message):
    with pytest.raises(InputError, match=f"^{message}") as caught:
        parse(*argv)
    assert "\n" not in str(caught.value)


def test_unknown_flags_of_a_subcommand_get_its_hint():
    parser = Parser(prog="prog")
    sub = parser.add_subparsers().add_parser("draw")
    sub.add_argument("--window-size", type=int)
    assert parser.parse_args(["draw", "--window_size", "2"]).window_size == 2
    with pytest.raises(InputError, match=r"unknown argument '--windowsize'; .*Did you mean '--window-size'\?"):
        parser.parse_args(["draw", "--windowsize", "2"])


def test_help_shows_defaults_and_percent_signs(capsys):
    with pytest.raises(SystemExit) as left:
        parse("--help")
    assert left.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "how many, at most 100 % (default: 3)" in text
    assert "--mode" in text
    assert "(default: None)" not in text
    assert "--no-keep-all" in text


def raising(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "code", "err"),
    [
        (lambda: None, 0, ""),
        (lambda: 0, 0, ""),
        (lambda: 143, 143, ""),
        (raising(InputError("the cup is empty; fill it.")), 2, "error: the cup is empty; fill it.\n"),
        (raising(RunError("the cup broke.")), 1, "error: the cup broke.\n"),
        (raising(KeyboardInterrupt()), 130, "error: interrupted\n"),
    ],
)
def test_exit_codes(command, code, err, capsys):
    assert exit_code(command) == code
    assert capsys.readouterr() == ("", err)


def test_other_errors_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: 1 / 0)
