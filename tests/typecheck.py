"""Types and shapes of all of infodis, checked by beartype and jaxtyping while the tests run.

jaxtyping brings an import hook of its own. It reads a call's arguments three times, which took a third of the time of
all tests; here beartype reads them once. An axis has one size from the arguments of a call to what it returns.
"""

import ast
import dataclasses
import functools
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import marshal
import sys
import types
import typing
from pathlib import Path

from beartype import BeartypeConf, beartype
from jaxtyping import AbstractArray, TypeCheckError, jaxtyped

_typed = beartype(conf=BeartypeConf(is_pep484_tower=True, violation_type=TypeCheckError))
"""An int may stand for a float, as in all of Python; what is wrong is a `TypeError`, as Python's own."""


def install(package: str) -> None:
    """Check whatever of a package is imported from now on."""
    sys.meta_path.insert(0, _Finder(package))


def checked(what):
    """A function, or a dataclass's constructor, with its arguments and results checked."""
    if inspect.isclass(what):
        if dataclasses.is_dataclass(what) and not hasattr(what.__init__, "__wrapped__"):
            what.__init__ = checked(what.__init__)
        return what
    hints = {name: _resolved(hint, what.__globals__) for name, hint in what.__annotations__.items()}
    if not hints or _unread(hints):
        return what
    if inspect.isgeneratorfunction(what):  # beartype would look at its arguments when it is first asked for a value
        return jaxtyped(what, typechecker=_typed)
    typed = _typed(_with_hints(what, hints))
    if not any(map(_has_shapes, hints.values())):
        return functools.update_wrapper(typed, what)

    @functools.wraps(what)
    def in_scope(*arguments, **options):
        __tracebackhide__ = True
        with jaxtyped("context"):  # the sizes of axes belong to this call
            return typed(*arguments, **options)

    return in_scope


def _resolved(hint, names):
    """A hint that may be written as a string; Any if it names what is not there yet."""
    try:
        return typing.get_type_hints(types.SimpleNamespace(__annotations__={"it": hint}), names, include_extras=True)[
            "it"
        ]
    except Exception:
        return typing.Any


def _unread(hints) -> bool:
    """Of Python 3.10 beartype cannot read Unpack: only overloads have it."""
    return sys.version_info < (3, 11) and any("Unpack[" in str(hint) for hint in hints.values())


def _has_shapes(hint) -> bool:
    if isinstance(hint, list):  # the arguments of a Callable
        return any(map(_has_shapes, hint))
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_has_shapes, typing.get_args(hint)))


def _with_hints(function, hints):
    """The same function with other annotations; those of the original are read by typer and dataclasses."""
    code, names, closure = function.__code__, function.__globals__, function.__closure__
    twin = functools.update_wrapper(
        types.FunctionType(code, names, function.__name__, function.__defaults__, closure), function
    )
    twin.__kwdefaults__, twin.__annotations__ = function.__kwdefaults__, hints
    del twin.__wrapped__
    return twin


class _Decorate(ast.NodeTransformer):
    """`checked` nearest to every function, and outermost on every class: after `dataclass`."""

    def _decorator(self, node):
        return ast.copy_location(ast.parse("typecheck.checked", mode="eval").body, node)

    def visit_FunctionDef(self, node):
        node.decorator_list.append(self._decorator(node))
        return self.generic_visit(node)

    def visit_ClassDef(self, node):
        node.decorator_list.insert(0, self._decorator(node))
        return self.generic_visit(node)

    def visit_Module(self, node):
        node.body.insert(1 if ast.get_docstring(node) is not None else 0, ast.parse("import typecheck").body[0])
        return self.generic_visit(node)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname):
        """Compiled once for a source and a way to check it, and kept beside Python's own."""
        path = self.get_filename(fullname)
        source, kept = self.get_data(path), importlib.util.cache_from_source(path, optimization="typechecked")
        stamp = hashlib.sha256(Path(__file__).read_bytes() + source).digest()
        try:
            found = self.get_data(kept)
        except OSError:
            found = b""
        if found[: len(stamp)] == stamp:
            return marshal.loads(found[len(stamp) :])
        code = self.source_to_code(source, path)
        if not sys.dont_write_bytecode:
            self.set_data(kept, stamp + marshal.dumps(code))
        return code

    def source_to_code(self, data, path, *, _optimize=-1):
        tree = _Decorate().visit(ast.parse(data, path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True, optimize=_optimize)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, fullname, path=None, target=None):
        if fullname.partition(".")[0] != self.package:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec
