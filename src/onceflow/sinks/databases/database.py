"""What a sink asks of a database: all that there is to write for another one.

A database is a file in this folder with two classes, `Session` and `Database`, and a line in `open_database`
(`databases/__init__.py`). `sqlite.py` is the one to begin with. What it must hold to:

- **Statements** come in plain SQL with `?` for values, and are given to the driver in its own style. The statements are
  those of `merging.py` and `progress_table.py`: INSERT ... SELECT ... ON CONFLICT DO UPDATE, window functions. A
  database that says these in other words overrides the methods at the end of `Database`.
- **A transaction is a transaction**: `begin`, then statements, creation and removal of tables among them, then `commit`
  or `rollback`; a session that ends in between has changed nothing. `lock_row` waits for whoever has changed the row
  and has not ended its transaction, also if its connection is gone: that is how a lost answer to COMMIT is cleared up.
- **What goes wrong** is raised as one of three: `Again` (rolled back; the same may succeed in a moment), `Gone` (nobody
  answers; what was not committed is lost, and of a COMMIT that was on its way nobody knows), `Refused` (it would be the
  same the next time; the message is for a person). Never the driver's own exceptions.
- **A stage** is where tasks leave their rows, each task all of them or none. When the driver has sealed it, nobody adds
  to it any more, and it tells which attempts of which tasks are in it. It may lose everything in a crash of the
  database, but then it must not claim to have it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from onceflow.spark.problems import SinkError

__all__ = [
    "Again",
    "Column",
    "Database",
    "Gone",
    "Kind",
    "Loaded",
    "Refused",
    "Result",
    "Session",
    "Stage",
    "TableColumn",
    "TableName",
    "Trouble",
]


# --- what goes wrong


class Trouble(SinkError):
    """What a database answers in place of doing it; one of the three below."""


class Again(Trouble):
    """A deadlock, a serialization failure, a lock that was waited for too long: rolled back, and worth another try."""


class Gone(Trouble):
    """The connection was lost, or there is none to be had now: the server restarts, or has too many."""


class Refused(Trouble):
    """A constraint, a missing right, a wrong password, a full disk, a value that does not fit."""


# --- tables and their columns


@dataclass(frozen=True)
class Kind:
    """What a column holds, whatever a database calls it.

    `boolean`, `smallint`, `integer`, `bigint`, `real`, `double`, `decimal` (with precision and scale), `text`,
    `binary`, `date`, `timestamp` (an instant), `timestamp_ntz` (what a clock on the wall shows), `json` (text, when it
    comes from a task).
    """

    name: str
    precision: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})" if self.name == "decimal" else self.name


@dataclass(frozen=True)
class Column:
    """A column of the rows that are to be written."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that exists."""

    name: str
    type: str
    """As the database calls it, for messages: `character varying(20)`."""
    is_nullable: bool = True
    has_default: bool = False
    """Or is generated: rows need not bring it."""


class TableName(NamedTuple):
    """Of a table; `schema` is None where the database decides."""

    schema: str | None
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """`orders` or `sales.orders`."""
        schema, dot, name = text.rpartition(".")
        return cls(schema if dot else None, name)

    def __str__(self) -> str:
        return self.name if self.schema is None else f"{self.schema}.{self.name}"


# --- what tasks write


@dataclass(frozen=True)
class Stage:
    """Where the rows of one table and one micro-batch wait for the merge. Tasks get it, so it can be pickled."""

    name: TableName
    columns: tuple[Column, ...]


class Loaded(NamedTuple):
    """What an attempt of a task has left in a stage."""

    task: int
    attempt: int
    """Spark's task attempt id: no two attempts of an application have the same."""
    rows: int


@dataclass(frozen=True)
class Result:
    """What a statement has done."""

    rows: list[tuple[Any, ...]]
    """What a SELECT or RETURNING gives."""
    count: int
    """How many rows a statement has changed."""


class Session(abc.ABC):
    """A connection. Used by one thread at a time."""

    @property
    @abc.abstractmethod
    def connection(self) -> Any:
        """The driver's own connection, for code of users."""

    @abc.abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> Result:
        """Inside of a transaction if one was begun, otherwise by itself. Raises `Trouble`."""

    @abc.abstractmethod
    def begin(self) -> None: ...

    @abc.abstractmethod
    def commit(self) -> None:
        """Raises `Gone` if it is not known what has become of it; any other trouble means: rolled back."""

    @abc.abstractmethod
    def rollback(self) -> None:
        """Never raises: a connection that cannot say so any more has been rolled back by its loss."""

    @abc.abstractmethod
    def close(self) -> None:
        """Never raises."""

    @property
    @abc.abstractmethod
    def is_in_transaction(self) -> bool: ...

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Committed in the end, rolled back if anything is raised inside."""
        self.begin()
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.commit()


class Database(abc.ABC):
    """How to reach a database, and what is particular about it. Tasks get it, so it can be pickled."""

    url: str
    where_stages_are: str = ""
    """For the message that rows of a task are missing: what must be so that the driver finds them."""
    refuses_double_keys: bool = False
    """Whether INSERT ... ON CONFLICT DO UPDATE fails if two of its rows have the same key. Otherwise that is looked for
    before each merge, which costs as much as to sort the rows."""

    @property
    @abc.abstractmethod
    def shown(self) -> str:
        """The address for messages and logs: without a password."""

    @abc.abstractmethod
    def connect(self, *, lock_timeout_s: float, statement_timeout_s: float | None = None) -> Session:
        """A session that waits so long for a lock. A transaction that stays idle for long, because its process hangs,
        is ended by the server, if it can."""

    @abc.abstractmethod
    def identity(self, session: Session, table: TableName) -> str:
        """The same for the same table of the same database, whichever of its addresses was given; while it runs."""

    # --- names and types

    @abc.abstractmethod
    def quoted(self, name: str | TableName) -> str:
        """As it stands in a statement; no name can be anything else than a name."""

    @abc.abstractmethod
    def type_for(self, kind: Kind) -> str:
        """For CREATE TABLE. Raises `Refused` where there is none."""

    def keeps_as_text(self, kind: Kind) -> bool:
        """Whether numbers of this kind are kept as text, with which the database cannot compute."""
        return False

    @abc.abstractmethod
    def misfit(self, column: Column, there: TableColumn) -> str | None:
        """Why values of this column cannot be kept, all of them and unchanged, in that one; None if they can."""

    @abc.abstractmethod
    def columns(self, session: Session, table: TableName) -> list[TableColumn] | None:
        """Of a table; None if it does not exist."""

    @abc.abstractmethod
    def unique_keys(self, session: Session, table: TableName) -> list[frozenset[str]]:
        """The sets of columns that ON CONFLICT can name: primary key and unique constraints."""

    @abc.abstractmethod
    def check_rights(self, session: Session, table: TableName, rights: Sequence[str]) -> None:
        """Raises `Refused` if we have one of these rights ("INSERT") neither on a table nor on any of its columns."""

    def create_if_missing(self, session: Session, table: TableName, statement: str) -> None:
        """By itself, not in a transaction. Somebody else may be doing the same."""
        if self.columns(session, table) is not None:
            return
        try:
            session.execute(statement)
        except Refused:
            if self.columns(session, table) is None:  # nobody else has just created it
                raise

    # --- stages

    @abc.abstractmethod
    def create_stage(self, session: Session, stage: Stage, target: TableName) -> None:
        """Inside of a transaction. Its columns have the types of the target's columns of the same name; those that the
        target does not have, the type for their kind."""

    @abc.abstractmethod
    def load(self, stage: Stage, task: int, attempt: int, batches: Iterable[Any]) -> int:
        """On an executor: all rows of a task (Arrow record batches with the stage's columns, in its order) into the
        stage, or none of them; returns how many there were. Raises `Trouble`."""

    @abc.abstractmethod
    def gather(self, session: Session, stage: Stage) -> None:
        """On the driver, outside of a transaction, when all tasks are done: what must be done before `seal`."""

    @abc.abstractmethod
    def seal(self, session: Session, stage: Stage) -> list[Loaded]:
        """Inside of the transaction that merges: from here on nobody adds to it. What is in it; nothing, if it has
        lost its rows. Afterwards its rows are read under `stage.name`."""

    @abc.abstractmethod
    def drop_stage(self, session: Session, stage: TableName) -> None:
        """Nothing happens if there is none. It is called in the transaction of the merge, and once more after it: what
        a rollback could not bring back must wait for the second call (`session.is_in_transaction`)."""

    @abc.abstractmethod
    def stages(self, session: Session, prefix: TableName) -> list[TableName]:
        """Those whose names begin so: what dead drivers have left behind, for `drop_stage`."""

    # --- statements in other words

    def lock_row(self, select: str) -> str:
        """A SELECT of one row that nobody changes until our transaction ends."""
        return f"{select} FOR UPDATE"

    def lock_table(self, session: Session, table: TableName) -> None:
        """Until our transaction ends nobody else writes into it. Reading goes on."""
        session.execute(f"LOCK TABLE {self.quoted(table)} IN SHARE ROW EXCLUSIVE MODE")

    def details(self) -> Mapping[str, str]:
        """For `repr`."""
        return {"url": self.shown}
