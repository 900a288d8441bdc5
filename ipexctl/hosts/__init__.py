"""Read the hosts of the cluster from options and from every file that can name them.

Input is options and files; output is `Host`s in order, or a refusal with the line of the file. Nothing here opens a
connection.
"""
