"""Recognises checkpoints of several files by the names that frameworks write. Pure.

The process that begins a checkpoint also ends it by writing one file last, the marker. A directory without its marker
belongs to a killed rank, or other ranks wrote into it after this process deleted it. Directories of unknown formats are
not listed.

| format | recognised by | whole with |
| --- | --- | --- |
| Trainer | `checkpoint-N` with its arguments or state, or beside such ones | `trainer_state.json`, all weights |
| accelerate, `save_state` | `random_states_N.pkl` | `random_states_0.pkl`, all weights |
| torch.distributed.checkpoint | `__N_M.distcp` | `.metadata`, and each file that it names |
| Lightning, sharded | `epoch=N-….ckpt` with `__N_M.distcp` | the same, and `meta.pt` |
| any | files of ranks, none of rank 0, and no weights | never |
| any, in `checkpoint-N` | half-written weights | never |

A single file, as from `torch.save` or Lightning, is complete if its end is there (`check_complete`).
"""

from __future__ import annotations

import re
import zipfile
from typing import IO, Collection, Iterable, Iterator, Mapping, NamedTuple

from ipexctl.node.common.json_records import parse_json

_TEMPORARY = re.compile(r"\.?tmp.*|.*\.(tmp|temp)([._-].*)?|.*\.(part|partial|incomplete|swp)|.*~|\.nfs.*", re.DOTALL)
_OF_TORCH = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".distcp")
_MAX_HEADER = 100 << 20
_OF_A_RANK = re.compile(
    r"rng_state_[0-9]+\.pth|random_states_[0-9]+\.pkl|__[0-9]+_[0-9]+\.distcp"
    r"|(bf16_|fp16_)?zero_pp_rank_[0-9]+_mp_rank_[0-9]+_(optim|model)_states\.pt"
)
METADATA = ".metadata"
"""torch.distributed.checkpoint's list of the parts."""
_TRAINER_STATE, _FIRST_STATES = "trainer_state.json", "random_states_0.pkl"
_LIGHTNING_DIRECTORY, _LIGHTNING_META = re.compile(r".*[a-z]=-?[0-9].*\.ckpt"), "meta.pt"
_NAMED_PART = re.compile(rb"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_TRAINER_DIRECTORY = re.compile(r"checkpoint-[0-9]+")
_TRAINER_FILES = frozenset(("training_args.bin", _TRAINER_STATE))
_RNG_STATE = re.compile(r"rng_state(_[0-9]+)?\.pth")
_BESIDE_WEIGHTS = re.compile(
    r"(training_args|optim(izer)?(_states?(_dict)?)?|scheduler|sampler|scaler|rng_state|random_states)\b.*"
    r"|(rng_state|random_states)_.*"
    r"|(optimizer|scheduler|sampler|scaler)_[0-9]+\..*|.*\.(json|txt|md|jinja|py)|\.metadata|latest"
)
_SHARD = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})(\.(?:safetensors|bin))")
_INDEX = ".index.json"
_OF_A_MODEL = re.compile(
    r"(adapter_)?(model|pytorch_model|diffusion_pytorch_model)(_[0-9]+)?(-[0-9]{5}-of-[0-9]{5})?"
    r"\.(safetensors|bin)(\.index\.json)?"
)
_SETTINGS = re.compile(
    r"(adapter_|generation_|preprocessor_|processor_|tokenizer_)?config\.json|tokenizer\.(json|model)|vocab\.(json|txt)"
    r"|merges\.txt|special_tokens_map\.json|added_tokens\.json|chat_template\.jinja|spiece\.model|sentencepiece.*\.model"
)
"""What loads a model with its weights, beside them."""
_OF_A_FRAMEWORK = re.compile(
    rf"{_OF_A_MODEL.pattern}|{_SETTINGS.pattern}"
    r"|(optimizer|scheduler|scaler|sampler)(_[0-9]+)?\.(pt|bin)|training_args\.bin|trainer_state\.json"
    r"|rng_state\.pth|meta\.pt|dl_state_dict(_[0-9]+)?\.bin|custom_checkpoint_[0-9]+\.pkl|\.metadata|latest"
    r"|zero_to_fp32\.py|mp_rank_[0-9]+_model_states\.pt"
)


class Checkpoint(NamedTuple):
    marker: str
    is_whole: bool


def is_of_a_rank(name: str) -> bool:
    """True if frameworks give one rank's part such a name."""
    return _OF_A_RANK.fullmatch(name.rpartition("/")[2]) is not None


def is_of_a_framework(name: str) -> bool:
    """Return True if frameworks give a file of their checkpoints such a name."""
    return is_of_a_rank(name) or _OF_A_FRAMEWORK.fullmatch(name.rpartition("/")[2]) is not None


def is_weights(name: str) -> bool:
    """True for a file with weights in a recognised checkpoint; unknown formats count too."""
    return _BESIDE_WEIGHTS.fullmatch(name.rpartition("/")[2]) is None


def is_of_torch(name: str) -> bool:
    """True for the name of a file with a model's weights, or a part of them."""
    return name.endswith(_OF_TORCH) and is_weights(name) and not is_temporary(name)


def is_temporary(part: str) -> bool:
    """True if programs give such a name to files they are still writing."""
    return _TEMPORARY.fullmatch(part) is not None


def parts_of(name: str, names: Collection[str]) -> frozenset[str]:
    """Return the names of a directory that make one checkpoint with a file of it: all shards with their index, a model
    with what loads it, all parts of torch.distributed.checkpoint. A file that is one by itself comes back alone."""
    if name.endswith(".distcp"):
        return frozenset(
            sibling for sibling in names if sibling.endswith(".distcp") or sibling in (METADATA, _LIGHTNING_META)
        )
    is_model, stem = _OF_A_MODEL.fullmatch(name), _stem(name)
    return frozenset((name, *(n for n in names if _stem(n) == stem or (is_model and _SETTINGS.fullmatch(n)))))


def _stem(name: str) -> str:
    whole = name[: -len(_INDEX)] if name.endswith(_INDEX) else name
    shard = _SHARD.fullmatch(whole)
    return f"{shard[1]}{shard[4]}" if shard else whole


def find_named_parts(content: bytes) -> frozenset[str]:
    """Return the neighbouring files that torch.distributed.checkpoint's `.metadata` names. The pickle is not loaded."""
    return frozenset(part.decode() for part in _NAMED_PART.findall(content))


def is_of_trainer(directory: str) -> bool:
    """True for the name of a Trainer's checkpoint. A Trainer takes an empty directory of this name for one, too."""
    return _TRAINER_DIRECTORY.fullmatch(directory.rpartition("/")[2]) is not None


def find_checkpoints(
    names: Iterable[str],
    top: str,
    half: Iterable[str] = (),
    named_parts: Mapping[str, Collection[str]] = {},
) -> dict[str, Checkpoint]:
    """Find the directories among `names` that are checkpoints, outermost first.

    Directly in `top` only files count: directories there may be other checkpoints. `half`: half-written files;
    `named_parts`: file → neighbouring files it names.
    """
    direct: dict[str, set[str]] = {}
    for name in names:
        directory, _, last = name.rpartition("/")
        if directory:  # otherwise PATH is a single file
            direct.setdefault(directory, set()).add(last)
    cut = {name.rpartition("/")[0] for name in half if is_of_a_framework(name) and is_weights(name)} - {""}
    for directory in cut:
        direct.setdefault(directory, set())
    of_trainer = {path.rpartition("/")[0] for path in direct if is_of_trainer(path) and direct[path] & _TRAINER_FILES}
    below: dict[str, set[str]] = {}
    for directory in direct:
        for above in directories_above(directory):
            if above != top:
                below.setdefault(above, set()).add(directory)
    checkpoints: dict[str, Checkpoint] = {}
    for directory in sorted(direct, key=lambda path: (-path.count("/"), path)):  # innermost first
        inner = below.get(directory, set())
        beside_trainer = directory.rpartition("/")[0] in of_trainer
        checkpoint = _recognise(directory, direct[directory], has_more=bool(inner), beside_trainer=beside_trainer)
        if checkpoint is not None and not direct[directory].issuperset(named_parts.get(f"{directory}/{METADATA}", ())):
            checkpoint = checkpoint._replace(is_whole=False)
        if directory in cut and is_of_trainer(directory):
            checkpoint = Checkpoint(f"{directory}/{_TRAINER_STATE}", is_whole=False)
        if checkpoint is not None:
            has_parts = any(path in checkpoints and not checkpoints[path].is_whole for path in inner)
            checkpoints[directory] = checkpoint._replace(is_whole=checkpoint.is_whole and not has_parts)
    return dict(sorted(checkpoints.items()))


def directories_above(name: str) -> Iterator[str]:
    """Yield the parent directories, innermost first."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _recognise(directory: str, files: set[str], *, has_more: bool, beside_trainer: bool) -> Checkpoint | None:
    has_rng_states = any(map(_RNG_STATE.fullmatch, files))
    if is_of_trainer(directory) and (files & _TRAINER_FILES or (beside_trainer and has_rng_states)):
        weights = any(map(is_weights, files)) or has_more
        return Checkpoint(
            f"{directory}/{_TRAINER_STATE}", _TRAINER_STATE in files and weights and has_all_shards(files)
        )
    if any(re.fullmatch(r"random_states_[0-9]+\.pkl", file) for file in files):
        return Checkpoint(f"{directory}/{_FIRST_STATES}", _FIRST_STATES in files and has_all_shards(files))
    if any(file.endswith(".distcp") and is_of_a_rank(file) for file in files):
        if _LIGHTNING_DIRECTORY.fullmatch(directory.rpartition("/")[2]):
            return Checkpoint(f"{directory}/{_LIGHTNING_META}", {METADATA, _LIGHTNING_META} <= files)
        return Checkpoint(f"{directory}/{METADATA}", METADATA in files)
    if _lacks_first_rank(files) and not has_more:
        return Checkpoint(f"{directory}/{_TRAINER_STATE}", is_whole=False)
    return None


def _lacks_first_rank(files: set[str]) -> bool:
    """True if only other ranks wrote there: rank 0 deleted the directory, or was killed before it wrote its part."""
    of_ranks = {file for file in files if is_of_a_rank(file)}
    is_of_first = any(re.search(r"(?<![0-9])0(?![0-9])", file) for file in of_ranks)
    return bool(of_ranks) and not is_of_first and not any(map(is_weights, files - of_ranks))


def has_all_shards(files: set[str]) -> bool:
    """True if no shard of a numbered set is missing."""
    matches = filter(None, map(_SHARD.fullmatch, files))
    return all(
        {f"{match[1]}-{number:05}-of-{match[3]}{match[4]}" for number in range(1, int(match[3]) + 1)} <= files
        for match in matches
    )


class HalfWrittenError(Exception):
    """Says why a file is half-written."""


def check_complete(file: IO[bytes], path: str, size: int) -> None:
    """Raise a HalfWrittenError if a file of torch or safetensors is incomplete."""
    if not size:
        if path.endswith(_OF_TORCH):  # the script's other empty files may be markers
            raise HalfWrittenError("it is half-written: it is empty")
        return
    head = file.read(8)
    if head[:4] == b"PK\3\4":
        if not zipfile.is_zipfile(file):
            raise HalfWrittenError("it is half-written: its end is missing")
    elif path.endswith(".safetensors") and not _has_all_tensors(file, head, size):
        raise HalfWrittenError("it is half-written: tensors are missing")


def _has_all_tensors(file: IO[bytes], head: bytes, size: int) -> bool:
    length = int.from_bytes(head, "little")
    try:
        header = parse_json(file.read(min(length, _MAX_HEADER)))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(8 + length + max(ends, default=0) == size)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False
