"""The module tune: change settings of the account or the machine that affect training, and restore them.

Before a setting is changed, its value is saved in HOME/tune.before; `state: absent` restores from there, and a value
that can't be restored stays there. The script may run as root, so on the way to the home it follows no symlink of
another account.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Final, NamedTuple

from ipexctl.addons.play.modules.host_script import ENTER, run_sh
from ipexctl.addons.play.result import Call, TaskResult, failure
from ipexctl.addons.play.variables import PlayContext
from ipexctl.remote.home_script import home_functions, home_refusal
from ipexctl.remote.session import Session

SYMLINK_FIX: Final = "use the home's real path, without links of other accounts: --home DIR"
# HOME/tune.before has one line for each setting. `enter.sh` makes the home the current directory, and `home.sh` checks
# that it is a home. With `become`, tune has a directory of its own.
_TUNE: Final = (
    ENTER
    + """\
umask 077
mode=$1 state=$2 is_home=$4; expand_home "$3"; shift 4
kept=./tune.before present=yes
own_home() {
  [ -O . ] || fail "${here:-/} belongs to another account"
  [ ! -L "$kept" ] && [ ! -d "$kept" ] || fail "no regular file is in its place: $here/tune.before"
}
if enter "$path"; then
  own_home
  [ -z "$is_home" ] || check_home . || refuse_home
else
  present=
fi
make_home() {
  if [ -z "$present" ]; then enter "$missing" make; own_home; present=yes; fi
  [ -z "$is_home" ] || use_home . || refuse_home
}
file_of() {
  case $1 in
    thp) echo /sys/kernel/mm/transparent_hugepage/enabled;;
    sysctl:*) echo "/proc/sys/$(printf %s "${1#sysctl:}" | tr . /)";;
  esac
}
governors() { ls /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor 2>/dev/null; }
now() {
  case $1 in
    linger) if [ -e "/var/lib/systemd/linger/$(id -un)" ]; then echo yes; else echo no; fi;;
    governor) f=$(governors | head -n 1); [ -n "$f" ] && cat "$f";;
    thp) sed -n 's/.*\\[\\(.*\\)\\].*/\\1/p' "$(file_of thp)" 2>/dev/null;;
    *) tr -s '\\t' ' ' <"$(file_of "$1")" 2>/dev/null;;
  esac
}
put() {
  case $1 in
    linger) if [ "$2" = yes ]; then loginctl enable-linger; else loginctl disable-linger; fi;;
    governor) for f in $(governors); do printf %s "$2" >"$f" || return 1; done;;
    *) printf %s "$2" >"$(file_of "$1")";;
  esac
}
change() {
  is=$(now "$1")
  if [ -z "$is" ]; then printf 'missing\\t%s\\t\\t%s\\n' "$1" "$2"; return; fi
  if [ "$is" = "$2" ]; then printf 'same\\t%s\\t%s\\t%s\\n' "$1" "$is" "$2"; return; fi
  if [ "$mode" = check ]; then printf 'changed\\t%s\\t%s\\t%s\\n' "$1" "$is" "$2"; return; fi
  if [ "$state" = present ] && ! { [ -n "$present" ] && grep -q "^$1	" "$kept" 2>/dev/null; }; then
    make_home
    if ! printf '%s\\t%s\\n' "$1" "$is" >>"$kept"; then
      printf 'failed\\t%s\\t%s\\t%s\\n' "$1" "$is" "$2"; return
    fi
  fi
  if why=$(put "$1" "$2" 2>&1) && [ "$(now "$1")" = "$2" ]; then
    printf 'changed\\t%s\\t%s\\t%s\\n' "$1" "$is" "$2"
  else
    printf 'failed\\t%s\\t%s\\t%s\\t%s\\n' "$1" "$is" "$2" "$(printf %s "$why" | tail -n 1)"
  fi
}
if [ "$state" = present ]; then
  while [ $# -gt 1 ]; do change "$1" "$2"; shift 2; done
  exit 0
fi
[ -n "$present" ] && [ -e "$kept" ] || exit 0
rest=$kept.rest; [ "$mode" = check ] || { rm -f "$rest"; (set -C; : >"$rest") || exit 1; }
while IFS='	' read -r name was; do
  asked=no; [ $# -eq 0 ] && asked=yes
  for each do [ "$each" = "$name" ] && asked=yes; done
  if [ $asked = no ]; then [ "$mode" = check ] || printf '%s\\t%s\\n' "$name" "$was" >>"$rest"; continue; fi
  output=$(change "$name" "$was"); printf '%s\\n' "$output"
  case $output in failed*) [ "$mode" = check ] || printf '%s\\t%s\\n' "$name" "$was" >>"$rest";; esac
done <"$kept"
[ "$mode" = check ] || { if [ -s "$rest" ]; then mv -f "$rest" "$kept"; else rm -f "$rest" "$kept"; fi; }
"""
)


def _tune(context: PlayContext, call: Call, session: Session) -> TaskResult:
    """Set the settings of the task, or restore them (`state: absent`); restore all if the task names none."""
    settings, is_present, is_home = _requested_settings(call), call.args["state"] == "present", call.become is None
    if not settings and is_present:
        return failure("tune has nothing to set", "give linger, thp, governor or sysctl")
    invalid = next((value for value in settings.values() if not re.fullmatch(r"[\w .:,-]+", value)), None)
    if invalid is not None:
        return failure(f"{invalid!r} can't be a setting's value")
    home = context.options.home if is_home else "/var/lib/ipexctl-tune"
    arguments = ["check" if call.check else "", call.args["state"], home, "yes" if is_home else ""]
    arguments += chain.from_iterable(settings.items()) if is_present else settings
    completed = run_sh(context, session, call, home_functions() + _TUNE, arguments)
    if completed.rc != 0:
        refused = home_refusal(completed.last_error, home)
        return (
            failure(refused.reason, refused.fix) if refused is not None else completed.failure(symlink_fix=SYMLINK_FIX)
        )
    lines = completed.stdout.decode(errors="replace").splitlines()
    return _result([_SettingDone(*(*line.split("\t"), "", "", "", "")[:5]) for line in lines], is_home=is_home)


def _requested_settings(call: Call) -> dict[str, str]:
    """Return setting → value: `linger`, `thp`, `governor`, `sysctl:vm.swappiness`."""
    args = call.args
    settings = {} if args["linger"] is None else {"linger": "yes" if args["linger"] else "no"}
    settings |= {name: args[name] for name in ("thp", "governor") if args[name] is not None}
    sysctl = (args["sysctl"] or {}).items()
    return settings | {f"sysctl:{name}": " ".join(str(value).split()) for name, value in sysctl}


class _SettingDone(NamedTuple):
    """What the script printed about one setting."""

    outcome: str
    """`changed`, `same`, `failed`, or `missing` on this machine."""
    name: str
    before: str
    after: str
    """The value that was to be set."""
    error: str
    """Empty unless setting it failed with a message."""

    @property
    def shown(self) -> str:
        return self.name.removeprefix("sysctl:")


def _result(settings: list[_SettingDone], *, is_home: bool) -> TaskResult:
    """Return the result of a host. `is_home`: False if the task ran as another account."""
    changed = [setting for setting in settings if setting.outcome == "changed"]
    missing = [setting.name for setting in settings if setting.outcome == "missing"]
    by_name = {
        setting.name: {"before": setting.before, "after": setting.after, "outcome": setting.outcome}
        for setting in settings
    }
    data = {"settings": by_name, "missing": missing}
    diff = "".join(f"- {done.shown} = {done.before}\n+ {done.shown} = {done.after}\n" for done in changed)
    notes = [", ".join(f"{setting.shown} {setting.before} → {setting.after}" for setting in changed)]
    notes += [f"this machine has no {', '.join(missing)}"] if missing else []
    failed = next((setting for setting in settings if setting.outcome == "failed"), None)
    if failed is not None:
        fix = "become: true sets it as root" if is_home else "this kernel or container does not allow it"
        error = f": {failed.error}" if failed.error else ""
        reason = f"{failed.name} is still {failed.before}, not {failed.after}{error}"
        return TaskResult("failed", reason, fix, data, diff)
    return TaskResult("changed" if changed else "ok", "; ".join(filter(None, notes)), data=data, diff=diff)


RUNNERS: Final = {"tune": _tune}
