"""Memory that comes back after a crash as it was at the last commit.

An area has a name in a store, and its memory can be NumPy arrays:

>>> import fermata
>>> with fermata.Area("orders", 1 << 20) as area:
...     arrays = area.arrays(prices=((1000,), "f8"), count=((), "i8"))
...     arrays["prices"][:3] = 9.5, 12.0, 0.25
...     arrays["count"][...] = 3
...     id = area.commit("three orders")

In the next process, or after this one was killed:

>>> del arrays
>>> with fermata.Area("orders", 1 << 20) as area:
...     arrays = area.arrays()
...     int(arrays["count"]), arrays["prices"][:3].tolist()
(3, [9.5, 12.0, 0.25])

Commits are checkpoints like those of machines: `fermata log -e orders` lists them.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import math
import operator
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Self, SupportsIndex, Union

from . import _native
from ._native import Commit, Error

if TYPE_CHECKING:
    from types import TracebackType

    import numpy
    from numpy.typing import DTypeLike

__all__ = ["Area", "Commit", "Error", "commit_together"]

Shape = Union[SupportsIndex, Iterable[SupportsIndex]]

# The table of an area's arrays: its first page, if `arrays` is used. docs/formats/area.md has it.
_MAGIC = b"fermata arrays 1\n"
_TABLE = 4096
_ALIGN = 64

# Not closed yet. What was committed behind a program is written before the program ends.
_open: weakref.WeakSet[Area] = weakref.WeakSet()


def _abandon_all() -> None:
    for area in _open:
        area._abandon()
    _open.clear()


# A child has no area, and nothing to write.
os.register_at_fork(after_in_child=_abandon_all)


@atexit.register
def _drain_all() -> None:
    # All of them, whatever one of them says.
    with contextlib.ExitStack() as stack:
        for area in _open:
            if not area.closed:
                stack.callback(area.drain)


class Area(_native.Area):
    """Memory of fixed size under a name: as it was at its last commit, or all zero if there is none.

    `nbytes` is rounded up to whole pages of 4096, and is the same every time. `store` is a directory; None: $FERMATA_STORE, or the user's own store.

    `tracking` says how writes are found: "auto" is the cheapest that this host has under which system calls may write into the area. "assisted",
    "protect", "emulate", "soft-dirty", "compare" and "difference" name one. Under "protect" and "emulate", and with `only_stores=True`, which lets
    "auto" choose them, `expect_writes` has to be called before each system call that writes into the area; without, the call fails with EFAULT.

    With `copy_on_write=True`, `commit_behind` returns before what was written is copied: a thread copies, and a page that is written to again before is
    copied first. Where writes are found by signals that makes the pause of large commits shorter; else nothing changes. What is no store of the
    program's own is then to be expected before it is written, pinned memory, too.

    With `keep_last=N`, or from `area.keep_last(N)` on, the area keeps its last N commits, one at least, and what is tagged: a thread removes older
    ones every ten seconds, and frees their space when that is worth it. Without, it keeps all of them.

    One process at a time has an area open. Its threads may use it; calls wait for each other. Writes by a thread that is in the midst of one when
    another commits (NumPy computes without the interpreter's lock) may be in the commit by half: join such threads first, or hold a lock around both.
    A child of fork has no area and can open none: calls raise Error there, and touching an array ends the child.

    It has the buffer protocol: memoryview(area), numpy.frombuffer(area). Leaving `with` closes it; where arrays are still there, they keep the
    memory until the last of them is gone.

    >>> area = Area("counter", 8)
    >>> area.nbytes, area.head is None
    (4096, True)
    >>> with memoryview(area) as memory:
    ...     memory[0] += 1
    >>> area.commit() == area.head
    True
    >>> area.close()
    """

    _transaction = False
    # Whoever commits or undoes has it, in the process that opened the area.
    _changing: threading.RLock
    _pid: int
    # The table as it was written last.
    _page = b""

    def __new__(
        cls,
        name: str,
        nbytes: SupportsIndex,
        *,
        store: str | os.PathLike[str] | None = None,
        tracking: str = "auto",
        only_stores: bool = False,
        copy_on_write: bool = False,
        keep_last: int | None = None,
    ) -> Self:
        area = super().__new__(cls, name, nbytes, store, tracking, only_stores, copy_on_write)
        if keep_last is not None:
            area.keep_last(keep_last)
        area._changing, area._pid = threading.RLock(), os.getpid()
        _open.add(area)
        return area

    def __repr__(self) -> str:
        return f"<fermata.Area {self.name!r}, {self.nbytes} bytes{', closed' if self.closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self._leave()
        except Error:
            # The first error is the one to be told.
            if kind is None:
                raise

    def array(self, shape: Shape, dtype: DTypeLike = "f8", offset: int = 0) -> numpy.ndarray[Any, Any]:
        """The bytes from `offset` on as an array; nothing is copied.

        >>> area = Area("grid", 8 * 6)
        >>> grid = area.array((2, 3))
        >>> grid[1] = 7
        >>> grid
        array([[0., 0., 0.],
               [7., 7., 7.]])
        """
        import numpy

        shape, dtype = _shape(shape), numpy.dtype(dtype)
        if dtype.hasobject:
            raise TypeError(f"{dtype} has Python objects, whose addresses mean nothing after a restart")
        if offset < 0 or offset + _bytes(shape, dtype) > self.nbytes:
            raise ValueError(f"{self!r} has no room for {shape} of {dtype} at {offset}")
        # `frombuffer` keeps the buffer for as long as the array lives, `ndarray(buffer=area)` would not.
        return numpy.ndarray(shape, dtype, numpy.frombuffer(memoryview(self), "u1"), offset)

    def arrays(self, **wanted: tuple[Shape, DTypeLike]) -> dict[str, numpy.ndarray[Any, Any]]:
        """All arrays of the area by their names. Those in `wanted`, as (shape, dtype), are made if they are not there, all zero; what is there already must be
        as it is wanted. The area's first page keeps the table of them, so an area has either such arrays or a layout of the program's own.

        >>> area = Area("model", 1 << 16)
        >>> names = area.arrays(weights=((16, 16), "f4"), step=((), "i8"))
        >>> names["weights"].shape, int(names["step"])
        ((16, 16), 0)
        >>> list(area.arrays(loss=(100, "f8")))
        ['weights', 'step', 'loss']
        """
        import numpy

        table = self._table()
        end = max((at + _bytes(shape, dtype) for shape, dtype, at in table.values()), default=_TABLE)
        for name, (shape, dtype) in wanted.items():
            shape, dtype = _shape(shape), numpy.dtype(dtype)
            if name not in table:
                at = -(-end // _ALIGN) * _ALIGN
                table[name] = shape, dtype, at
                end = at + _bytes(shape, dtype)
            elif table[name][:2] != (shape, dtype):
                raise ValueError(f"{self!r} has {name} as {table[name][0]} of {table[name][1]}, not as {shape} of {dtype}")
        if end > self.nbytes:
            raise ValueError(f"{self!r} is too small for these arrays, which need {end} bytes")
        arrays = {name: self.array(*place) for name, place in table.items()}
        if wanted:
            self._write_table(table)
        return arrays

    def _table(self) -> dict[str, tuple[tuple[int, ...], numpy.dtype[Any], int]]:
        from numpy.lib.format import descr_to_dtype

        with memoryview(self) as memory:
            page = bytes(memory[:_TABLE])
        if not any(page):
            return {}
        try:
            if not page.startswith(_MAGIC):
                raise ValueError("it is none")
            entries = ast.literal_eval(page[len(_MAGIC) :].rstrip(b"\0").decode())
            return {name: (shape, descr_to_dtype(descr), at) for name, (shape, descr, at) in entries.items()}
        except (ValueError, TypeError, SyntaxError, AttributeError, RecursionError, MemoryError) as error:
            raise ValueError(f"{self!r} has something else than a table of arrays in its first page: {error}") from error

    def _write_table(self, table: dict[str, tuple[tuple[int, ...], numpy.dtype[Any], int]]) -> None:
        from numpy.lib.format import dtype_to_descr

        entries = {name: (shape, dtype_to_descr(dtype), at) for name, (shape, dtype, at) in table.items()}
        text = _MAGIC + repr(entries).encode()
        if len(text) > _TABLE:
            raise ValueError(
                f"the table of these {len(entries)} arrays has {len(text)} bytes, and its page room for {_TABLE};"
                " use shorter names, one array for several, or a second area"
            )
        self._page = text.ljust(_TABLE, b"\0")
        self._put_table()

    def _put_table(self) -> None:
        with memoryview(self) as memory:
            memory[: len(self._page)] = self._page

    def commit(self, message: str | None = None) -> str:
        """Makes a checkpoint of the area as it is, and returns its id when it is durable.

        After an Error the memory is as it was, and the next commit has all of it.
        """
        with self._alone():
            return super().commit(message)

    def commit_behind(self, message: str | None = None) -> Commit:
        """The same, but returns as soon as what was written is copied. `wait` of what it returns waits for the disk and for every backup.

        Where four commits are yet to be written, it waits for the first of them before it copies. Raises Error if a backup was lost before; the commit is
        written here all the same.

        >>> area = Area("behind", 4096)
        >>> area.array((1,))[0] = 2.5
        >>> commit = area.commit_behind()   # the program goes on meanwhile
        >>> commit.wait() == area.head, commit.done()
        (True, True)
        """
        with self._alone():
            return super().commit_behind(message)

    def commit_replicated(self, message: str | None = None) -> Commit:
        """The same, but returns as soon as every backup (`back_up_to`) has it in its memory; it becomes durable behind the program.

        Raises Error if a backup is lost. The commit becomes durable here all the same.
        """
        with self._alone():
            return super().commit_replicated(message)

    def back_up_to(self, socket: str | os.PathLike[str]) -> None:
        """Commits, and has each commit from this one on go to a backup, too: to `fermata receive` at this Unix socket, which a tunnel of SSH may lead to from another host.

        Returns when the backup has all of the area. From its store the area opens when this program or its host is gone. `commit` waits for backups, too, and raises
        Error if one is lost: the commit is durable here all the same, and `back_up_to` sends all anew, `stop_backing_up` does without.
        """
        with self._alone():
            super().back_up_to(socket)

    def roll_back(self) -> None:
        """Undoes all writes since the last commit. Arrays that were made since then stay, all zero."""
        with self._alone():
            self._undo()

    def _undo(self) -> None:
        super().roll_back()
        self._put_table()

    @contextlib.contextmanager
    def transaction(self, message: str | None = None) -> Iterator[Self]:
        """Commits at the end of the block; an exception in it undoes all writes since the last commit and goes on.

        Meanwhile other calls that commit or undo are a RuntimeError, in other threads, too. If the commit fails, the writes stay.

        >>> area = Area("accounts", 4096)
        >>> balance = area.array((2,), "i8")
        >>> with area.transaction("opened"):
        ...     balance[:] = 100, 0
        >>> with area.transaction():
        ...     balance[0] -= 150
        ...     if balance[0] < 0:
        ...         raise LookupError("too little")
        Traceback (most recent call last):
        LookupError: too little
        >>> balance.tolist()
        [100, 0]
        """
        with self._alone():
            self._transaction = True
            try:
                yield self
            except BaseException:
                self._undo()
                raise
            else:
                super().commit(message)
            finally:
                self._transaction = False

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread at a time commits or undoes, and none in another one's transaction: what it waits for takes the interpreter away from it, before anything is captured."""
        while True:
            if self._transaction:
                raise RuntimeError(f"{self!r} is in a transaction, whose end commits it or takes it back")
            # In a child of fork, whoever had it may be no more; there all calls fail.
            if self._changing.acquire(timeout=0.05) or os.getpid() != self._pid:
                break
        try:
            yield
        finally:
            if os.getpid() == self._pid:
                self._changing.release()


def _shape(shape: Shape) -> tuple[int, ...]:
    sizes = tuple(map(operator.index, shape)) if isinstance(shape, Iterable) else (operator.index(shape),)
    if any(size < 0 for size in sizes):
        raise ValueError(f"no array has the shape {sizes}")
    return sizes


def _bytes(shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> int:
    return math.prod(shape) * dtype.itemsize


def commit_together(*areas: Area) -> list[str]:
    """Commits several areas at one instant: their ids, when all are durable and every backup has them. A crash in between may leave some of them at their commit before: keep what refers to each other in one area."""
    with contextlib.ExitStack() as stack:
        # In one order, whichever they are named in: nobody waits for somebody who waits.
        for area in sorted(areas, key=id):
            stack.enter_context(area._alone())
        return _native.commit_together(*areas)
