"""Fetches files of a run or a host to the control machine: the request, the transfer, the destination."""
