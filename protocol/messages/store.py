"""Messages between a store and its clients: connections, sessions, reads with watches, transactions (A3).

The store is a tree of nodes with data and versions, as ZooKeeper's. A client has a session; its ephemeral nodes exist
as long as the session does. A transaction is one operation or several (`multi`), of which all take effect or none. A
read may leave a *watch*, which sends one event when what was read changes, before any later response to the client
shows the change. Responses of a session come in the order of its requests.

ZooKeeper has all this from TCP; hosts here may lose, duplicate and reorder messages. A *connection* therefore numbers
its messages in both directions. The side that receives a number twice drops the copy, and the side that misses one
ends the connection, as a broken TCP connection ends. Pings and their answers carry the last numbers, so that a lost
message is missed even if no other one follows. A session outlives its connections; of an older connection nothing is
carried out once a newer one is open. All messages use one channel, the control channel, so that their order is kept.
"""

from __future__ import annotations

from enum import IntEnum

from protocol.messages.base import Int32, Int64, Message
from protocol.values import direct

ANY_VERSION = -1
"""The version of a write that is made whatever the version of the node is."""
NO_SESSION = 0
"""The session id of a client that has no session yet; the owner of a node that is not ephemeral."""


@direct
class StoreError(IntEnum):
    """Why a store refused a request, in ZooKeeper's numbers; CONNECTION_LOSS: it may have been carried out."""

    NONE = 0
    CONNECTION_LOSS = -4
    INVALID_PATH = -8
    NO_NODE = -101
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112


class Create(Message):
    """Creates a node; its parent must exist. An `ephemeral` node ends with its session, and has no children. The name
    of a `sequential` node is completed by ten digits, which grow with every child that the parent has had.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(Message):
    """Replaces the data of a node that has `version`, whose version grows by one."""

    path: str
    data: bytes
    version: Int32 = ANY_VERSION


class Delete(Message):
    """Deletes a node that has `version` and no children."""

    path: str
    version: Int32 = ANY_VERSION


class Check(Message):
    """Requires that a node has `version`; changes nothing."""

    path: str
    version: Int32


WriteOperation = Create | SetData | Delete | Check


class GetData(Message):
    """Reads the data and version of a node. The watch fires when the node is changed or deleted."""

    path: str
    watch: bool = False


class Exists(Message):
    """Reads whether a node exists. The watch fires when it is created, changed or deleted."""

    path: str
    watch: bool = False


class GetChildren(Message):
    """Reads the names of a node's children, sorted. The watch fires when one is created or deleted, or the node is."""

    path: str
    watch: bool = False


ReadOperation = GetData | Exists | GetChildren


class SetWatches(Message):
    """Sets watches again over a new connection: `data` and `exists` of nodes that existed and did not, `children`. One
    of something that has changed since transaction `zxid` fires at once.
    """

    zxid: Int64
    data: tuple[str, ...] = ()
    exists: tuple[str, ...] = ()
    children: tuple[str, ...] = ()


class OperationResult(Message):
    """The result of one operation: `version` of the node after it (-1: none); `data` of GetData; `children` of
    GetChildren; `exists` of Exists; `path` of the node that Create has created. After an error only that is set."""

    error: StoreError = StoreError.NONE
    version: Int32 = -1
    data: bytes = b""
    children: tuple[str, ...] = ()
    exists: bool = False
    path: str = ""


class StoreMessage(Message, control=True):
    """Base of the messages of one connection, which the client numbers; no two connections have the same number."""

    connection_id: Int64


class OpenSession(StoreMessage):
    """Opens a connection with a new session, or to continue `session_id`. The client repeats it until it is answered.
    The store expires a session of which it has received nothing for `timeout_ms`."""

    timeout_ms: Int32
    session_id: Int64 = NO_SESSION


class SessionOpened(StoreMessage):
    """The session that OpenSession has opened or continues, with its timeout, or SESSION_EXPIRED."""

    session_id: Int64
    timeout_ms: Int32 = 0
    error: StoreError = StoreError.NONE


class ConnectionClosed(StoreMessage):
    """The store does not know the connection: it has restarted, the session has expired, or a message was lost."""


class SessionPing(StoreMessage, renewal=True):
    """Keeps a session alive; `xid` is that of the last request."""

    xid: Int64


class SessionPong(StoreMessage, renewal=True):
    """The answer to a ping; `number` is that of the last message of the store."""

    number: Int64


class StoreRequest(StoreMessage):
    """Base of requests; `xid` numbers those of a connection from 1 on."""

    xid: Int64


class StoreRead(StoreRequest):
    """One read."""

    operation: ReadOperation | SetWatches


class StoreWrite(StoreRequest):
    """One transaction."""

    operations: tuple[WriteOperation, ...]


class CloseSession(StoreRequest):
    """Ends the session and its ephemeral nodes, as in a controlled shutdown. There is no response."""


class StoreResponse(StoreMessage):
    """The results of a request, one per operation. If an operation of a transaction fails, none has taken effect, and
    the results end with that of the operation that failed. `zxid`: the number of the store's last transaction.
    `number` numbers the responses and watch events of a connection from 1 on."""

    number: Int64
    xid: Int64
    zxid: Int64
    results: tuple[OperationResult, ...]

    @property
    def error(self) -> StoreError:
        """The error of the operation that failed, if any."""
        return self.results[-1].error if self.results else StoreError.NONE


@direct
class WatchKind(IntEnum):
    """What has happened to a watched node."""

    CREATED = 1
    DELETED = 2
    DATA_CHANGED = 3
    CHILDREN_CHANGED = 4


class WatchEvent(StoreMessage):
    """A watch has fired, and is gone; `number` as in StoreResponse."""

    number: Int64
    kind: WatchKind
    path: str


class ExpireSessions(Message, control=True):
    """A fault: the store ends all sessions of a node (A52), or with `owning_only` those with ephemeral nodes."""

    node_id: Int32
    owning_only: bool = False


class StoreRecord(Message):
    """Base of what the store's transaction log holds; the offset of a record, plus one, is its zxid."""


class SessionBegan(StoreRecord):
    """A session, whose id is the zxid, of the node `owner`."""

    owner: Int32
    timeout_ms: Int32


class SessionEnded(StoreRecord):
    """A session was closed or has expired; its ephemeral nodes end with it."""

    session_id: Int64


class Transaction(StoreRecord):
    """The operations of a session that have taken effect."""

    session_id: Int64
    operations: tuple[WriteOperation, ...]
