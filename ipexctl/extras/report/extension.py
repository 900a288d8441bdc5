"""Registers `ipexctl report`, and the page that `run --report` and Python programs write."""

from ipexctl.extensions import CommandEntry, Extra

EXTRA = Extra(
    (
        CommandEntry(
            "report",
            "Write one HTML page that shows a run.",
            "ipexctl.extras.report.report_command",
        ),
    ),
    adds={
        "run-page": "ipexctl.extras.report.report_command:RunPageFile",
        "page-of-run": "ipexctl.extras.report.report_command:write_report",
    },
)
