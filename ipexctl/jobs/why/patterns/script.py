"""Known error texts of the script: its modules, files and arguments, its framework, its downloads.

Special patterns come before common ones; docs/troubleshooting.md has the ids.
"""

from __future__ import annotations

import re
from typing import Final

from ipexctl.hosts.nodeset import fold
from ipexctl.jobs.submit.preflight.imports import PACKAGES
from ipexctl.jobs.why.patterns.match import KnownError, PatternMatch

_ROWS: Final = "ipexctl install installs matching packages on every node; ipexctl versions shows them"
_IPEX_WANTS: Final = r"needs to work with PyTorch (?P<wanted>\S+), but PyTorch (?P<there>\S+) is found"
_OUR_BINDINGS: Final = ("oneccl_bindings_for_pytorch", "oneccl_bind_pt", "torch_ccl")


def _who_has_none(found: PatternMatch, what: str) -> tuple[str, tuple[str, ...]]:
    """`node2 has no …`, and the hosts that did not report it."""
    hosts, everyone = found.hosts, found.context.hosts
    quiet = tuple(host for host in everyone if host not in hosts)
    if len(everyone) > 1 and not quiet:
        return f"no node of this run has a {what}", ()
    verb = "has" if len(hosts) == 1 else "have"
    doubt = f"; {fold(quiet)} did not report this, or had not reached that line" if quiet else ""
    return f"{fold(hosts)} {verb} no {what}{doubt}", quiet


def _no_module(found: PatternMatch) -> tuple[str, str]:
    module = found.groups["module"]
    top = module.split(".")[0]
    sentence, quiet = _who_has_none(found, f"Python module named {module}")
    if top in _OUR_BINDINGS:
        return sentence, "ipexctl install --require-oneccl installs the oneCCL bindings; without them: --backend gloo"
    if top in ("torch", "intel_extension_for_pytorch"):
        return sentence, _ROWS
    known = PACKAGES.get(module) or PACKAGES.get(top)
    look = f"ipexctl exec -- {found.context.python} -c 'import {top}'"
    install = found.context.install(known or top.replace("_", "-"))
    fix = f"if {top} is a file of yours: put it into the project, ipexctl sync uploads it; "
    fix += f"if it is a package: {install}" if known else f"if it is a package, check its name on PyPI, then: {install}"
    return sentence, f"{fix}; to see which hosts lack it: {look}" if quiet else fix


def _no_file(found: PatternMatch) -> tuple[str, str]:
    path = found.groups["path"]
    sentence, _ = _who_has_none(found, f"file {path}")
    return (
        sentence,
        (
            "put it into the project, and ipexctl sync uploads it; other data must be at the same path on every node, "
            f"which run --data DIR checks; to see which hosts have it: ipexctl exec -- ls -d {path}"
        ),
    )


def _denied(found: PatternMatch) -> tuple[str, str]:
    path = found.groups.get("path", "a file")
    return (
        f"your account has no permission for {path} on {fold(found.hosts)}",
        f"see its owner: ipexctl exec -- ls -ld {path}; use a path below your home",
    )


def _argument(found: PatternMatch) -> tuple[str, str]:
    name = found.groups["name"].strip("-").replace("-", "_")
    hints = {
        "use_ipex": "leave it out: newer versions have no use_ipex; call ipex.optimize in the script",
        "no_cuda": "its name is use_cpu now: use_cpu=True",
        "use_mps_device": "leave it out: the device is detected",
        "xpu_backend": "its name is ddp_backend now: ddp_backend='gloo' or 'ccl'",
        "evaluation_strategy": "its name is eval_strategy now",
        "ddp_backend": "older versions call it xpu_backend; or leave it out and use --backend of ipexctl run",
        "use_cpu": "older versions call it no_cuda",
        "eval_strategy": "older versions call it evaluation_strategy",
        "jit_mode_eval": "leave it out: newer versions have no jit_mode_eval",
        "tokenizer": "its name is processing_class now",
    }
    return (
        f"the installed version of transformers or accelerate has no argument {name}",
        hints.get(name, "the documentation of that version has the name")
        + f"; another version: {found.context.install('transformers<5')}",
    )


def _module_ipex(found: PatternMatch) -> tuple[str, str]:
    match = re.search(_IPEX_WANTS, found.output.text)  # the pattern that matched may be that of a later exception
    versions = f": it needs torch {match['wanted']}, and {match['there']} is installed" if match else ""
    return f"IPEX was built for another torch than the installed one{versions}", _ROWS


def _no_symbol(found: PatternMatch) -> tuple[str, str]:
    library = found.groups["library"].rpartition("/")[2]
    return (
        (f"{library} was built for another version of a library that it needs, most often because pip replaced torch"),
        f"{_ROWS}; add packages of your own with {found.context.install('PKG')}, which keeps torch",
    )


SCRIPT: Final = (
    KnownError(
        "stack.ipex_other_torch",
        (
            _IPEX_WANTS,
            r"module 'os' has no attribute 'exit'",
        ),
        tell=_module_ipex,
    ),
    KnownError(
        "stack.undefined_symbol",
        (r"(?<![^\s:])(?P<library>[^\s:]+\.so[\w.]*): undefined symbol: (?P<symbol>\S+)",),
        tell=_no_symbol,
    ),
    KnownError(
        "stack.numpy",
        (
            r"A module that was compiled using NumPy 1\.x cannot be run in NumPy 2",
            r"numpy\.dtype size changed",
            r"numpy\.core\.multiarray failed to import",
        ),
        "a package was built for NumPy 1, and NumPy 2 is installed",
        "{install}",
        package="numpy<2",
    ),
    KnownError(
        "stack.old_glibc",
        (r"version `(?P<what>GLIBC(?:XX)?_[\d.]+)' not found",),
        "a package needs a newer system than {host} has ({what})",
        "ipexctl install takes only packages that run on all nodes; ipexctl doctor shows the glibc of each host",
    ),
    KnownError(
        "script.no_program",
        (r"^(?:/bin/|/usr/bin/)?(?:sh|bash|dash|env): (?:(?:line )?\d+: )?(?P<what>[^:\n]+): (?:command )?not found",),
        "{host} has no program {what}",
        "to see which hosts have it: ipexctl exec -- sh -c 'command -v \"$0\"' {what}; a program of a "
        "Python package: {install}",
        package="PKG",
    ),
    KnownError(
        "script.no_module",
        (r"No module named '?(?P<module>[\w.]+)'?",),
        tell=_no_module,
    ),
    KnownError(
        "script.no_trainer",
        (r"Using the `Trainer` with `PyTorch` requires `accelerate",),
        "the HF Trainer needs the package accelerate; the environment has none, or an old version",
        "{install}",
        package="transformers[torch]",
    ),
    KnownError(
        "script.no_name",
        (r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'",),
        "{module} has no {name}: the script was written for another version",
        "ipexctl envs shows the versions; {install} installs another",
        package="PKG==VERSION",
    ),
    KnownError(
        "hf.ccl_workers",
        (r"CPU distributed training backend is ccl\. but CCL_WORKER_COUNT is not correctly set",),
        "this version of transformers needs CCL_WORKER_COUNT to be 1 or more",
        "use --backend ccl or --ccl-workers 1, which set it; or gloo, which needs none: --ddp_backend gloo",
    ),
    KnownError(
        "hf.backend",
        (r"CPU distributed training backend is not properly set",),
        "this version of transformers needs the backend as an argument if there are several ranks",
        "add to the script's arguments: --ddp_backend gloo, or ccl (older versions: --xpu_backend)",
    ),
    KnownError(
        "hf.unknown_argument",
        (
            (
                r"(?:TrainingArguments|Accelerator|Trainer|TrainingArguments\w*|SFTConfig)(?:\.__init__)?\(\) got an "
                r"unexpected keyword argument '(?P<name>\w+)'"
            ),
            r"Some specified arguments are not used by the HfArgumentParser: \['(?P<name>[^']+)'",
        ),
        tell=_argument,
    ),
    KnownError(
        "hf.precision",
        (
            r"fp16 mixed precision requires a (?:GPU|device in)",
            r"FP16 Mixed precision training with AMP",
            r"Your setup doesn't support bf16/gpu",
            r"bf16 mixed precision requires PyTorch",
        ),
        "the script uses a precision for GPUs",
        "on CPUs use use_cpu=True with bf16=True, and no fp16; with accelerate: mixed_precision='bf16' and cpu=True",
    ),
    KnownError(
        "hf.not_allowed",
        (r"\b(?:401|403) Client Error", r"is a gated repo", r"Access to model \S+ is restricted"),
        "the Hugging Face Hub refused access: the ranks have no token, or the token may not read this",
        "send your token from your environment: -x HF_TOKEN",
    ),
    KnownError(
        "hf.no_internet",
        (
            r"We couldn't connect to 'https://huggingface\.co'",
            r"OfflineModeIsEnabled",
            r"LocalEntryNotFoundError",
            r"Cannot reach .*: offline mode is enabled",
            r"HTTPSConnectionPool\(host='(?:huggingface\.co|cdn-lfs[\w.-]*|hf\.co)'",
            r"Couldn't reach '[^']+' on the Hub",
        ),
        "{host} can't reach huggingface.co, and the model or data is not in its cache",
        "download it on a machine with internet, put it at one path on all nodes, and name that "
        "path; or -x HTTPS_PROXY",
    ),
    KnownError(
        "net.no_internet",
        (
            r"HTTPSConnectionPool\(host='(?P<name>[^']+)'",
            r"<urlopen error \[Errno -[23]\]",
            r"\[Errno -[23]\] (?:Temporary failure in name resolution|Name or service not known)",
        ),
        "{host} can't reach an internet address that the script uses",
        "download it beforehand, into the project or to one path on all nodes with --data; or -x HTTPS_PROXY",
    ),
    KnownError(
        "wandb.no_key",
        (r"wandb.*api_key not configured", r"wandb: ERROR .*(?:login|API key)"),
        "wandb has no API key on {host}",
        "send your key: -x WANDB_API_KEY; or use -x WANDB_MODE=offline",
    ),
    KnownError(
        "script.wants_cuda",
        (
            r"Torch not compiled with CUDA enabled",
            r"Found no NVIDIA driver on your system",
            r"No CUDA GPUs are available",
            r"CUDA driver version is insufficient",
            r"Attempting to deserialize object on a CUDA device",
        ),
        "the script uses a GPU, and these nodes have only CPUs",
        "use device 'cpu' instead of 'cuda'; for a checkpoint from a GPU: torch.load(FILE, map_location='cpu')",
    ),
    KnownError(
        "script.wants_nccl",
        (
            r"ProcessGroupNCCL is only supported with GPUs",
            r"Distributed package doesn't have NCCL built in",
        ),
        "the script uses the nccl backend, which needs GPUs",
        "use init_process_group('gloo'), or 'ccl' with the oneCCL bindings; with backends per device: 'cpu:gloo'",
    ),
    KnownError(
        "script.wants_mpi",
        (r"Distributed package doesn't have MPI built in",),
        "the script uses the mpi backend, which torch from PyPI doesn't have",
        "use init_process_group('gloo'), or 'ccl' with the oneCCL bindings",
    ),
    KnownError(
        "script.no_compiler",
        (
            r"No working C\+\+ compiler found",
            r"InvalidCxxCompiler",
            r"No such file or directory: '(?:g\+\+|gcc|c\+\+|cc)'",
            r"Python\.h: No such file or directory",
        ),
        "torch.compile needs a C++ compiler and Python's headers, and {host} has none",
        "as root on every node: apt install g++ python3-dev; to do without a compiler: -x TORCH_COMPILE_DISABLE=1",
    ),
    KnownError(
        "script.not_there",
        (r"can't open file '(?P<path>[^']+)': \[Errno 2\]",),
        "the script {path} does not exist on {host}",
        "ipexctl sync uploads the project; with --no-sync it must exist there already",
    ),
    KnownError(
        "script.syntax",
        (r"^(?P<what>SyntaxError|IndentationError|TabError): (?P<words>.*)",),
        "the script has a syntax error: {words}",
        "check it on the control machine: python3 -m py_compile SCRIPT; the nodes' Python may "
        "be older than yours: {python} --version",
    ),
    KnownError(
        "file.not_there",
        (r"(?:FileNotFoundError: )?\[Errno 2\] No such file or directory: '(?P<path>[^']+)'",),
        tell=_no_file,
    ),
    KnownError(
        "file.denied",
        (r"\[Errno 13\] Permission denied: '(?P<path>[^']+)'",),
        tell=_denied,
    ),
    KnownError(
        "script.arguments",
        (
            r"error: (?P<what>unrecognized arguments: .*)",
            r"error: (?P<what>the following arguments are required: .*)",
            r"error: (?P<what>argument \S+: .*)",
        ),
        "the script rejects its arguments: {what}",
        "put options of ipexctl before the script and the script's own behind it: ipexctl run "
        "--ppn 2 train.py --lr 1e-3",
    ),
    KnownError(
        "script.other_checkpoint",
        (r"size mismatch for (?P<name>[\w.]+):",),
        "a checkpoint doesn't match the model: {name} has another shape",
        "use a checkpoint of this model, the same file on every node: ipexctl exec -- sha256sum FILE shows differences",
    ),
)
