"""Python on a Mac, as far as that of a Linux can be one. `foreign_control.py` puts the values of NAMES, PYTHON and
DIRECTORY in front of this.

It refuses what a Mac refuses: names that macOS lacks are gone, numbers of Linux's options are unknown, more than 10,240
open files and a limit of memory are errors. What stays of Linux: errno's numbers, and all that is written in C.
"""

import importlib
import os
import platform
import resource
import socket
import sys
import sysconfig
import types

sysconfig.get_config_vars()  # kept: it has no file for a Mac
sys.platform = "darwin"
sys.executable = PYTHON  # noqa: F821
if os.environ.get("PYTHONPATH", "").startswith(DIRECTORY):  # noqa: F821  # by which it was found; a Mac has none
    os.environ["PYTHONPATH"] = os.environ["PYTHONPATH"][len(DIRECTORY) + 1 :]  # noqa: F821
    if not os.environ["PYTHONPATH"]:
        del os.environ["PYTHONPATH"]
for _module, _names in NAMES.items():  # noqa: F821
    for _place in (_module, {"os": "posix"}.get(_module, f"_{_module}")):
        try:
            _place = importlib.import_module(_place)
        except ImportError:
            continue
        for _name in _names:
            if hasattr(_place, _name):
                delattr(_place, _name)
for _module in ("selectors", "tempfile", "shutil"):  # a .pth file may have imported them: they choose when they are
    if _module in sys.modules:
        importlib.reload(sys.modules[_module])
for _call in (os.mkfifo, os.mknod):
    os.supports_dir_fd.discard(_call)

_own = os.uname()
os.uname = lambda: os.uname_result(("Darwin", _own.nodename, "24.6.0", "Darwin Kernel Version 24.6.0", "arm64"))

_proxies = types.ModuleType("_scproxy")  # urllib asks it for the proxies of the Mac's settings
_proxies._get_proxies = _proxies._get_proxy_settings = dict
sys.modules["_scproxy"] = _proxies

platform.mac_ver = lambda: ("15.6", ("", "", ""), "arm64")
sys.modules["appnope"] = types.ModuleType("appnope")  # a kernel of Jupyter asks it, by Objective-C, not to be paused
sys.modules["appnope"].nope = lambda: None

# netinet/tcp.h of macOS: NODELAY, KEEPALIVE, CONNDROPTIME, KEEPINTVL, KEEPCNT, with Linux's numbers
_OF_TCP = {1: 1, 0x10: 4, 0x80: 18, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 6}
socket.TCP_KEEPALIVE = 0x10
_set_option = socket.socket.setsockopt


def _setsockopt(self, level, option, *value):
    if level == socket.IPPROTO_TCP:
        if option not in _OF_TCP:
            raise OSError(42, "Protocol not available")
        option = _OF_TCP[option]
    return _set_option(self, level, option, *value)


socket.socket.setsockopt = _setsockopt
_get_limit, _set_limit = resource.getrlimit, resource.setrlimit


def _getrlimit(kind):
    soft, hard = _get_limit(kind)
    return soft, resource.RLIM_INFINITY if kind == resource.RLIMIT_NOFILE else hard


def _setrlimit(kind, limits):
    if kind == resource.RLIMIT_AS or (kind == resource.RLIMIT_NOFILE and not 0 <= limits[0] <= 10240):
        raise ValueError("current limit exceeds maximum limit")
    soft, hard = limits
    return _set_limit(kind, (soft, _get_limit(kind)[1] if kind == resource.RLIMIT_NOFILE else hard))


resource.getrlimit, resource.setrlimit = _getrlimit, _setrlimit
