"""Read a task's module and its options, which may be written in four ways:

    copy: {src: a, dest: b}        a mapping, also under `args:`
    copy: src=a dest=b             name=value pairs
    sync: DIR                      one value, for the module's free option (`Spec.free`)

Each option may be given once, whatever its name and place. Options such as `creates=` inside a command's own line are
errors, because they would become arguments of the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ipexctl.addons.play.keywords import NOT_MODULES, NOT_OPTIONS, TASK, UNSUPPORTED, advice, condition, conditions
from ipexctl.addons.play.modules import MODULES
from ipexctl.addons.play.modules.local_files import TOO_LARGE_FIX, check_copied, source_path
from ipexctl.addons.play.options import BadOption, Spec, convert_value, noun_of
from ipexctl.addons.play.playbook import JINJA, Arg, Keyed, Node, Position, TemplateText, Value, reason_of, templates_in
from ipexctl.errors import FileError
from ipexctl.file_reader import PLAYBOOK, TooLargeError, decode_text, read_regular
from ipexctl.hosts.host import did_you_mean, quote
from ipexctl.hosts.source import SourceFile
from ipexctl.text import is_variable_name

INCLUDE_VARS: Final = "include_vars"
_KNOWN_MODULES: Final = {*MODULES, INCLUDE_VARS}
_PREFIX: Final = re.compile(r"^(ansible\.builtin|ansible\.legacy|ipexctl)\.")
_BEGINS_WITH_PAIR: Final = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=")
_PAIR: Final = re.compile(r"""(?:\{[{%#].*?[}%#]\}|"[^"]*"|'[^']*'|[^\s"'])+""", re.DOTALL)
"""Splits `name=value` pairs; spaces inside quotes and braces belong to the value."""
_INLINE_ARGS: Final = re.compile(
    r"(?:^\s*|\s(?=(?:(?:creates|removes|chdir)=(?:\{\{.*?\}\}|\S)+\s*)+$))(creates|removes|chdir)=((?:\{\{.*?\}\}|\S)+)",
    re.DOTALL,
)
"""Such options at the beginning or the end of a command."""


def strip_prefix(key: str) -> str:
    """Return `copy` for `ansible.builtin.copy`."""
    return _PREFIX.sub("", key)


def module_of(node: Node, entries: Mapping[str, Keyed]) -> Keyed | None:
    """Return the entry of a task that is its module; None if only unknown keywords are there, which are reported.

    Raises a FileError if there is no module, or more than one.
    """
    no_keywords = [entry for key, entry in entries.items() if key not in TASK]
    modules = [entry for entry in no_keywords if strip_prefix(entry.key) in _KNOWN_MODULES]
    unknown = [entry for entry in no_keywords if strip_prefix(entry.key) not in _KNOWN_MODULES]
    for entry in unknown:
        key = strip_prefix(entry.key)
        if key in UNSUPPORTED:
            entry.key_node.report(f"{quote(entry.key)} is not supported here", fix=UNSUPPORTED[key])
        elif modules or key.startswith("with_"):
            entry.key_node.report(f"a task has no {quote(entry.key)}", fix=advice(entry.key, TASK | set(MODULES)))
        else:
            fix = did_you_mean(key, [*_KNOWN_MODULES, *TASK], f"one of: {', '.join(sorted(MODULES))}")
            fix = NOT_MODULES.get(key.rpartition(".")[2]) or fix
            raise entry.key_node.error(f"there is no module {quote(entry.key)}", fix=fix)
    if not modules and unknown:
        return None
    if not modules:
        keys = " and ".join(quote(key) for key in entries) or "nothing"
        raise node.error(f"this task has {keys} but no module", fix=f"one of {', '.join(sorted(MODULES))}")
    if len(modules) > 1:
        what = f"a task has one module, but this one has {modules[0].key} and {modules[1].key}"
        raise modules[1].key_node.error(what, fix="write two tasks, each with its own `- `")
    return modules[0]


def options_of(spec: Spec, module: Keyed, more: Keyed | None) -> dict[str, Arg]:
    """Return the options of a task, and report what is wrong with them. `more`: `args:` of the task."""
    node, errors = module.value, module.value.file.errors
    args: dict[str, Arg] = {}
    errors_before = len(errors)
    if node.is_a("mapping"):
        _add_options(spec, module.key, node.entries(module.key).values(), args)
    elif not node.is_null:
        is_command = spec.name in ("exec", "command")
        takes_value = spec.free is not None and (is_command or not _BEGINS_WITH_PAIR.match(node.text))
        if spec.free is not None and takes_value:
            if node.is_a("scalar"):
                _refuse_inline_args(node)
            args[spec.free] = Arg(node.written() if node.is_a("scalar") else node.value(), node.position)
        elif node.is_a("scalar"):
            args.update(_read_pairs(spec, module))
        else:
            raise node.error(f"{module.key} takes a mapping of options, not {node.kind}")
    if more is not None:
        _add_options(spec, module.key, more.value.entries("'args'").values(), args)
    if len(errors) == errors_before:
        errors += _bad_options(spec, module.key, args, module.key_node.position)
    return args


def _bad_options(spec: Spec, called: str, args: Mapping[str, Arg], position: Position) -> Iterator[FileError]:
    """Yield errors: options that are missing, exclude each other, or have a wrong value. Templates are not checked.

    `called`: the module as the playbook writes it. `position`: of the module.
    """
    for name, option in spec.options.items():
        if option.required and name not in args:
            yield position.error(f"{called} needs {quote(name)}, {noun_of(option)}")
    given = [name for name in spec.one_of if name in args]
    if spec.one_of and len(given) != 1:
        where = args[given[1]].position if given else position
        yield where.error(f"{called} needs either {' or '.join(spec.one_of)}")
    known = {}
    for name, arg in args.items():
        if not spec.any_option and not templates_in(arg.value):
            try:
                known[name] = convert_value(spec.options[name], arg.value)
            except BadOption as bad:
                yield arg.position.error(f"{called}: {quote(name)} {bad.message}", fix=bad.fix)
    if spec.check is not None and len(known) == len(args) and (problem := spec.check(known)):
        yield position.error(f"{called}: {problem}")


def _add_options(spec: Spec, called: str, entries: Iterable[Keyed], args: dict[str, Arg]) -> None:
    """Add the options of a mapping to `args`; a wrong one is reported, and left out."""
    for entry in entries:
        with entry.value.file.reporting():
            name = _option_name(spec, called, entry.key, entry.key_node.position)
            if name in args:
                raise entry.key_node.error(f"{called}: {quote(name)} appears twice")
            args[name] = Arg(_option_value(spec, name, entry.value), entry.value.position)


def _option_value(spec: Spec, name: str, node: Node) -> Value:
    """Return an option's value; a text or a mode is not converted by YAML's rules, and a condition needs no braces."""
    kind, is_scalar = spec.kind(name), node.yaml.id == "scalar"
    if kind in ("mode", "str", "path", "command") and is_scalar:
        return node.written()
    if kind == "exprs":
        return list(conditions(name, node))
    if name == "var" and not spec.any_option and is_scalar:
        return condition(node)
    return node.value()


def _option_name(spec: Spec, called: str, key: str, position: Position) -> str:
    """Return the name of the option for a name or an alias. Raises a FileError if the module has no such option."""
    if spec.any_option:
        if not is_variable_name(key):
            raise position.error(f"{quote(key)} can't be a variable name", fix="letters, digits and _")
        return key
    for name, option in spec.options.items():
        if key == name or key in option.aliases:
            return name
    names = sorted(spec.options)
    fix = NOT_OPTIONS.get(key) or did_you_mean(key, names, f"its options: {', '.join(names)}")
    raise position.error(f"{called} has no option {quote(key)}", fix=fix)


def _refuse_inline_args(node: Node) -> None:
    """Refuse `creates=` and the like in the line of a command."""
    if match := _INLINE_ARGS.search(node.text):
        value = f'"{match[2]}"' if "{{" in match[2] else match[2]
        what = f"{match[1]}= inside the line would become an argument of the command"
        raise node.error(what, fix=f"args: {{{match[1]}: {value}}}, below the line")


def _read_pairs(spec: Spec, module: Keyed) -> dict[str, Arg]:
    """Return the options of `copy: src=a dest=b`; values with spaces are quoted there."""
    template, args = module.value.template(), dict[str, Arg]()
    if re.search("[\"']", _PAIR.sub("", template.text)):
        raise module.value.error("a quote is never closed")
    for pair in _PAIR.findall(template.text):
        key, equals, value = pair.partition("=")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        position = template.spot(None, key)
        if not equals:
            what = f"{module.key} takes a mapping of options, or name=value words, not {quote(pair)}"
            raise position.error(what, fix=f"{module.key}: {{{next(iter(spec.options), 'option')}: {pair}}}")
        name = _option_name(spec, module.key, key, position)
        value_template = replace(template, text=value, position=position)
        expression = replace(value_template, kind="expr")
        arg_value: Value = value_template if JINJA.search(value) else value
        if spec.kind(name) == "exprs":
            arg_value = [expression]
        args[name] = Arg(expression if name == "var" else arg_value, position)
    return args


def read_source(module: str, base: Path, arg: Arg) -> TemplateText | None:
    """Return the text of a template task's `src`; None for copy.

    Raises a FileError if the file can't be sent. Nothing is checked if `src` of copy is a template.
    """
    if isinstance(arg.value, TemplateText):
        if module == "template":
            raise arg.position.error("template: 'src' can't be a template itself", fix="name the file")
        return None
    path, shown = source_path(module, base, str(arg.value)), quote(str(arg.value))
    try:
        if not path.exists():
            fix = f"paths are relative to {base} or its directory {module.replace('copy', 'file')}s/"
            raise arg.position.error(f"{module}: there is no {shown} on this machine", fix=fix)
        if module == "template":
            text = decode_text(read_regular(path, PLAYBOOK))
            source = SourceFile(str(path), path.parent, text.splitlines())
            return TemplateText(text, Position(source, 1, 1), kind="file")
        check_copied(path)
    except TooLargeError:
        limit = f"{PLAYBOOK.limit:,} bytes" if module == "template" else "256 MB"
        fix = "copy sends it unchanged" if module == "template" else TOO_LARGE_FIX
        raise arg.position.error(f"{module}: {shown} is larger than {limit}", fix=fix) from None
    except (OSError, UnicodeDecodeError) as error:
        what = f"{module}: {shown} can't be read: {reason_of(error)}"
        raise arg.position.error(what, fix="name a file that you can read") from None
    return None
