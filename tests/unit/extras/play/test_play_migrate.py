"""Uses of IPEX found in a project, and the edits that are safe."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipexctl.extras.play.modules.migrate import applied, scan, scan_text


@pytest.mark.parametrize(
    ("suffix", "line", "new"),
    [
        (".py", "import intel_extension_for_pytorch as ipex", ""),
        (".py", "import oneccl_bindings_for_pytorch", ""),
        (".py", "dist.init_process_group(backend='ccl')", "dist.init_process_group(backend='gloo')"),
        (".py", 'dist.init_process_group("ccl", rank=0)', 'dist.init_process_group("gloo", rank=0)'),
        (".py", "TrainingArguments(use_ipex=True, bf16=True)", "TrainingArguments(bf16=True)"),
        (".py", "TrainingArguments(ddp_backend='ccl')", "TrainingArguments(ddp_backend='gloo')"),
        (".py", "model = ipex.optimize(model)", None),
        (".sh", "run x.py --use_ipex --ddp_backend=ccl --bf16", "run x.py --ddp_backend gloo --bf16"),
        (".yaml", "  ipex: true", "  ipex: false"),
        (".yaml", "use_ipex: true", ""),
        (".txt", "intel-extension-for-pytorch==2.8.0", ""),
        (".toml", '"oneccl-bind-pt",', None),
    ],
)
def test_uses_of_ipex_and_ccl_are_replaced(suffix: str, line: str, new: str | None) -> None:
    (found,) = scan_text(line, f"f{suffix}", suffix)
    assert found.new == new


@pytest.mark.parametrize("line", ["import torch", "backend = 'gloo'", "# recipe x", "clip.exe", "cclamp(x)"])
def test_unrelated_lines_are_not_matched(line: str) -> None:
    assert scan_text(line, "f.py", ".py") == []


def test_ipex_import_is_kept_while_it_is_used() -> None:
    text = "import intel_extension_for_pytorch as ipex\nmodel = ipex.optimize(model)\n"
    found = scan_text(text, "f.py", ".py")
    assert [each.new for each in found] == [None, None]
    assert applied(text, found) == text


def test_migration_is_idempotent(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import intel_extension_for_pytorch as ipex\ninit_process_group('ccl')\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.py").write_text("import intel_extension_for_pytorch\n")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    found = scan(tmp_path)
    assert [each.path for each in found] == ["train.py", "train.py"]
    new = applied((tmp_path / "train.py").read_text(), list(found))
    assert new == "init_process_group('gloo')\n"
    (tmp_path / "train.py").write_text(new)
    assert scan(tmp_path) == ()
