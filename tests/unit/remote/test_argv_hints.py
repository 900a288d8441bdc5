"""Arguments of exec that only a shell expands, or that the shell of the control machine has expanded."""

from __future__ import annotations

import pytest

from ipexctl.remote.argv_hints import local_path_hint, local_paths, unexpanded, unexpanded_hint


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rm -rf ~/.x", ("~/.x",)),
        ("ls ~", ("~",)),
        ("ls ~other/x /data/*.pt", ("~other/x", "/data/*.pt")),
        ("du -sh $HOME/x ${TMP}", ("$HOME/x", "${TMP}")),
        ("find /data -name *.pt", ()),
        ("find ~/data -name *.pt", ("~/data",)),
        ("grep -r a.*b $x", ()),
        ("/bin/sh -c echo$HOME", ()),
        ("awk {print$NF} f", ()),
        ("ls a~b file.py~ $5", ()),
        ("uname -r", ()),
    ],
)
def test_arguments_that_a_shell_would_expand(line: str, found: tuple[str, ...]) -> None:
    assert unexpanded(line.split()) == found


def test_the_hint_shows_the_expansion_before_the_command() -> None:
    hint = unexpanded_hint(["rm", "-rf", "~/.x", "a b"], ["~/.x"])
    show, run = hint.index("--shell 'echo ~/.x'"), hint.index("""--shell 'rm -rf ~/.x '"'"'a b'"'"''""")
    assert show < run


def test_a_path_of_this_home_is_named_if_it_exists() -> None:
    argv = ["rm", "-rf", "/home/me/.x", "/home/me", "/home/me2/x", "/home/me/none"]
    assert local_paths(argv, "/home/me", lambda path: "none" not in path) == ("/home/me/.x",)
    assert local_paths(["rm", "/x"], "/", lambda _: True) == ()
    assert "ls -d ~/.x" in local_path_hint("/home/me/.x", "/home/me", "node[1-2]")
