"""Reads a task's module and options, written as a mapping, inline, under `args:` or as `name=value` words. Each option
may be given once, whatever its spelling and place. Options such as `creates=` inside a command's own line are errors,
because they would become arguments of the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ipexctl.extras.play.keywords import NOT_MODULES, NOT_OPTIONS, TASK, UNSUPPORTED, advice, condition, conditions
from ipexctl.extras.play.modules import MODULES
from ipexctl.extras.play.playbook_file import JINJA, PlaybookFile, Position, TemplateText, Value
from ipexctl.extras.play.playbook_model import TOO_LARGE_FIX, Arg, Spec, check_copied, source_path
from ipexctl.file_reader import PLAYBOOK, TooLargeError, decode_text, read_regular
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.source import SourceFile
from ipexctl.hosts.yaml_tree import Entry, YamlNode, is_null, kind
from ipexctl.text import is_variable_name

INCLUDE_VARS: Final = "include_vars"
KNOWN: Final = {*MODULES, INCLUDE_VARS}
_PREFIX: Final = re.compile(r"^(ansible\.builtin|ansible\.legacy|ipexctl)\.")
_INLINE: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=")
_WORD: Final = re.compile(r"""(?:\{[{%#].*?[}%#]\}|"[^"]*"|'[^']*'|[^\s"'])+""", re.DOTALL)
"""Splits `name=value` words; spaces inside quotes and braces belong to the value."""
_INLINE_ARGS: Final = re.compile(
    r"(?:^\s*|\s(?=(?:(?:creates|removes|chdir)=(?:\{\{.*?\}\}|\S)+\s*)+$))(creates|removes|chdir)=((?:\{\{.*?\}\}|\S)+)",
    re.DOTALL,
)


def strip_prefix(key: str) -> str:
    return _PREFIX.sub("", key)


def find_module(file: PlaybookFile, node: YamlNode, entries: Mapping[str, Entry]) -> Entry | None:
    modules = [entry for key, entry in entries.items() if key not in TASK and strip_prefix(key) in KNOWN]
    unknown = [entry for key, entry in entries.items() if key not in TASK and strip_prefix(key) not in KNOWN]
    for entry in unknown:
        key = strip_prefix(entry.key)
        if key in UNSUPPORTED:
            file.report(entry.key_node, f"{quote(entry.key)} is not supported here", fix=UNSUPPORTED[key])
        elif modules or key.startswith("with_"):
            file.report(entry.key_node, f"a task has no {quote(entry.key)}", fix=advice(entry.key, TASK | set(MODULES)))
        else:
            fix = NOT_MODULES.get(key.rpartition(".")[2]) or did_you_mean(
                key, [*KNOWN, *TASK], f"one of: {', '.join(sorted(MODULES))}"
            )
            raise file.error(entry.key_node, f"there is no module {quote(entry.key)}", fix=fix)
    if not modules and unknown:
        return None
    if not modules:
        keys = " and ".join(quote(key) for key in entries) or "nothing"
        raise file.error(node, f"this task has {keys} but no module", fix=f"one of {', '.join(sorted(MODULES))}")
    if len(modules) > 1:
        raise file.error(
            modules[1].key_node,
            f"a task has one module, but this one has {modules[0].key} and {modules[1].key}",
            fix="write two tasks, each with its own `- `",
        )
    return modules[0]


def default_name(module_entry: Entry, spec: Spec) -> str:
    value = module_entry.value
    if spec.free is not None and value.id == "scalar" and spec.name in ("exec", "command"):
        return f"{module_entry.key}: {str(value.value).splitlines()[0][:60] if str(value.value).strip() else ''}"
    return module_entry.key


def read_options(file: PlaybookFile, spec: Spec, module_entry: Entry, more: Entry | None) -> dict[str, Arg]:
    args: dict[str, Arg] = {}
    node = module_entry.value
    if node.id == "mapping":
        _add_options(file, spec, module_entry.key, file.entries(node, module_entry.key), args)
    elif not is_null(node):
        if spec.free is not None and not (_INLINE.match(str(node.value)) and spec.name not in ("exec", "command")):
            if node.id == "scalar":
                _refuse_inline_args(file, module_entry)
            value = file.text_value(node) if node.id == "scalar" else file.value(node)
            args[spec.free] = Arg(value, file.position(node))
        elif node.id == "scalar":
            args.update(_inline(file, spec, module_entry))
        else:
            raise file.error(node, f"{module_entry.key} takes a mapping of options, not {kind(node)}")
    if more is not None:
        _add_options(file, spec, module_entry.key, file.entries(more.value, "'args'"), args)
    return args


def _add_options(
    file: PlaybookFile, spec: Spec, module_name: str, entries: Sequence[Entry], found: dict[str, Arg]
) -> None:
    for entry in entries:
        with file.reporting():
            name = _option_name(spec, module_name, entry.key, file.position(entry.key_node))
            if name in found:
                raise file.error(entry.key_node, f"{module_name}: {quote(name)} appears twice")
            found[name] = Arg(_option_value(file, spec, name, entry), file.position(entry.value))


def _option_value(file: PlaybookFile, spec: Spec, name: str, entry: Entry) -> Value:
    node, option_kind = entry.value, spec.options[name].kind if name in spec.options else "any"
    if option_kind in ("mode", "str", "path", "command") and node.id == "scalar":
        return None if is_null(node) else file.text_value(node)
    if option_kind == "exprs":
        return list(conditions(file, entry))
    if name == "var" and not spec.any_option and node.id == "scalar":
        return condition(file, node)
    return file.value(node)


def _option_name(spec: Spec, module_name: str, key: str, position: Position) -> str:
    if spec.any_option:
        if not is_variable_name(key):
            raise position.error(f"{quote(key)} can't be a variable name", fix="letters, digits and _")
        return key
    name = spec.option(key)
    if name is None:
        names = sorted(spec.options)
        fix = NOT_OPTIONS.get(key) or did_you_mean(key, names, f"its options: {', '.join(names)}")
        raise position.error(f"{module_name} has no option {quote(key)}", fix=fix)
    return name


def _refuse_inline_args(file: PlaybookFile, module_entry: Entry) -> None:
    match = _INLINE_ARGS.search(str(module_entry.value.value))
    if match is not None:
        value = f'"{match[2]}"' if "{{" in match[2] else match[2]
        raise file.error(
            module_entry.value,
            f"{match[1]}= inside the line would become an argument of the command",
            fix=f"args: {{{match[1]}: {value}}}, below the line",
        )


def _inline(file: PlaybookFile, spec: Spec, module_entry: Entry) -> dict[str, Arg]:
    """Read `copy: src=a dest=b`; values with spaces are quoted."""
    template = file.template(module_entry.value)
    if re.search("[\"']", _WORD.sub("", template.text)):
        raise file.error(module_entry.value, "a quote is never closed")
    pairs = [args[0] for args in _WORD.finditer(template.text)]
    args: dict[str, Arg] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        position = template.spot(None, name)
        if not equals:
            raise position.error(
                f"{module_entry.key} takes a mapping of options, or name=value words, not {quote(pair)}",
                fix=f"{module_entry.key}: {{{next(iter(spec.options), 'option')}: {pair}}}",
            )
        known = _option_name(spec, module_entry.key, name, position)
        kind_of = spec.options[known].kind if known in spec.options else "any"
        value_template = replace(template, text=value, position=position)
        if known == "var" or kind_of == "exprs":
            value_template = replace(value_template, kind="expr")
            args[known] = Arg([value_template] if kind_of == "exprs" else value_template, position)
        else:
            args[known] = Arg(value_template if JINJA.search(value) else value, position)
    return args


def read_source(module: str, base: Path, arg: Arg) -> TemplateText | None:
    if isinstance(arg.value, TemplateText):
        if module == "template":
            raise arg.position.error("template: 'src' can't be a template itself", fix="name the file")
        return None
    path = source_path(module, base, str(arg.value))
    try:
        exists = path.exists()
    except PermissionError as error:
        reason = f"{module}: {quote(str(arg.value))}: {error.strerror}"
        raise arg.position.error(reason, fix="name a file that you can read") from None
    if not exists:
        raise arg.position.error(
            f"{module}: there is no {quote(str(arg.value))} on this machine",
            fix=f"paths are relative to {base} or its directory {module.replace('copy', 'file')}s/",
        )
    if module == "template":
        return _file_text(path, arg.position, str(arg.value))
    try:
        check_copied(path)
    except TooLargeError:
        raise arg.position.error(f"copy: {quote(str(arg.value))} is larger than 256 MB", fix=TOO_LARGE_FIX) from None
    except OSError as error:
        reason = f"copy: {quote(str(arg.value))} can't be read: {error.strerror or error}"
        raise arg.position.error(reason, fix="name a file that you can read") from None
    return None


def _file_text(path: Path, position: Position, shown: str) -> TemplateText:
    try:
        text = decode_text(read_regular(path, PLAYBOOK))
    except TooLargeError:
        raise position.error(
            f"template: {quote(shown)} is larger than {PLAYBOOK.limit:,} bytes", fix="copy sends it unchanged"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "it is not a text file"
        raise position.error(f"template: {quote(shown)} can't be read: {reason}") from None
    source = SourceFile(str(path), path.parent, text.splitlines())
    return TemplateText(text, Position(source, 1, 1), kind="file")
