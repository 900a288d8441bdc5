"""The command line as a whole: which commands there are, and what every one of them has."""

from __future__ import annotations

from typing import Annotated

import typer

import ipexctl
from ipexctl.cli.exec import exec_command
from ipexctl.cli.lab import lab_app

app = typer.Typer(
    name="ipexctl",
    help="Turn a list of machines you can ssh to into one PyTorch training job.",
    no_args_is_help=True,
    rich_markup_mode=None,  # its help costs twice the start-up of everything else
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ipexctl {ipexctl.__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


app.command("exec", no_args_is_help=True)(exec_command)
app.add_typer(lab_app, name="lab")
