"""Read what a project is: its root, its own packages, and the packages that it requires.

Input is texts of files; output is layouts, requirements, and what a script does. Nothing of a project is run.
"""
