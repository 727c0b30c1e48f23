"""Processes that begin as a copy of this one: nothing is imported again, and nothing they change is seen here."""

import multiprocessing


def start(function, *arguments):
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def exit_code(function, *arguments) -> int:
    process = start(function, *arguments)
    process.join()
    return process.exitcode
