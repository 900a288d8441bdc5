"""The command line: `python -m tools.machines build|boot|list|remove`."""

from __future__ import annotations

import argparse
import shlex
import sys
import time

from . import __doc__ as about
from .image import build
from .kinds import KINDS
from .machine import HOME, boot, image_of, living, remove, remove_all, require_programs
from .programs import MachineError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.machines", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("build", help="build an image of Debian")
    command.add_argument(
        "image", nargs="?", default="bookworm", choices=sorted({kind.image for kind in KINDS.values()})
    )
    command.add_argument("--torch", default="2.13", help="version to install for the account; empty: none")
    command = commands.add_parser("boot", help="boot a machine and print how to log in")
    command.add_argument("kind", choices=KINDS)
    command.add_argument("--name", default="", help="default: the kind")
    command.add_argument("--append", default="", metavar="WORDS", help="for the kernel's command line")
    commands.add_parser("list", help="list the machines that run, and the images")
    command = commands.add_parser("remove", help="end machines and remove their files")
    command.add_argument("names", nargs="*", metavar="NAME")
    command.add_argument("--all", action="store_true", help="all machines, and the images")
    given = parser.parse_args()
    begun = time.monotonic()
    try:
        require_programs(getattr(given, "image", ""))
        if given.command == "build":
            if (image_of(given.image) / "root.img").exists():
                raise MachineError(
                    f"{image_of(given.image)} is there; to build it again: rm -r {image_of(given.image)}"
                )
            build(image_of(given.image), given.image, given.torch)
            print(f"{image_of(given.image)} in {time.monotonic() - begun:.0f} s")
        elif given.command == "boot":
            machine = boot(given.kind, given.name, given.append)
            print(f"{machine.name} in {time.monotonic() - begun:.0f} s; to log in, also as root:")
            print(f"  {shlex.join(machine.ssh_argv())}")
            print(f"  ipexctl doctor {shlex.join(machine.options())}")
        elif given.command == "list":
            for machine in living():
                print(f"{machine.name}: {machine.kind} at {machine.address}, process {machine.pid}")
            for image in sorted(HOME.glob("*/root.img")):
                print(f"image {image.parent.name}: {image.stat().st_blocks * 512 / 1e9:.1f} GB in {image.parent}")
        elif given.all:
            remove_all()
        else:
            unknown = set(given.names) - {machine.name for machine in living()}
            if unknown or not given.names:
                raise MachineError(f"no machine {' '.join(sorted(unknown))} runs; python -m tools.machines list")
            remove(machine for machine in living() if machine.name in given.names)
    except MachineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
