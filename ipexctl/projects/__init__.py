"""What a project is: its root, its own packages, the packages that it requires.

In: texts of files. Out: layouts, requirements, what a script does. Nothing of a project is run.
"""
