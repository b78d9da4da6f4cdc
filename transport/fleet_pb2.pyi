from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Doubles(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Integers(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class Strings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class Booleans(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, values: _Optional[_Iterable[bool]] = ...) -> None: ...

class ByteStrings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("double", "integer", "boolean", "text", "data", "doubles", "integers", "booleans", "texts", "datas")
    DOUBLE_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DOUBLES_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    BOOLEANS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    DATAS_FIELD_NUMBER: _ClassVar[int]
    double: float
    integer: int
    boolean: bool
    text: str
    data: bytes
    doubles: Doubles
    integers: Integers
    booleans: Booleans
    texts: Strings
    datas: ByteStrings
    def __init__(self, double: _Optional[float] = ..., integer: _Optional[int] = ..., boolean: _Optional[bool] = ..., text: _Optional[str] = ..., data: _Optional[bytes] = ..., doubles: _Optional[_Union[Doubles, _Mapping]] = ..., integers: _Optional[_Union[Integers, _Mapping]] = ..., booleans: _Optional[_Union[Booleans, _Mapping]] = ..., texts: _Optional[_Union[Strings, _Mapping]] = ..., datas: _Optional[_Union[ByteStrings, _Mapping]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: Value
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...

class Entries(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class Blob(_message.Message):
    __slots__ = ("id", "size_bytes", "crc32")
    ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    id: str
    size_bytes: int
    crc32: int
    def __init__(self, id: _Optional[str] = ..., size_bytes: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class ArrayInfo(_message.Message):
    __slots__ = ("name", "dtype", "shape", "stype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    stype: str
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., stype: _Optional[str] = ...) -> None: ...

class Arrays(_message.Message):
    __slots__ = ("infos", "blob", "packed")
    INFOS_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    infos: _containers.RepeatedCompositeFieldContainer[ArrayInfo]
    blob: Blob
    packed: bytes
    def __init__(self, infos: _Optional[_Iterable[_Union[ArrayInfo, _Mapping]]] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ..., packed: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("name", "arrays", "metrics", "configs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arrays: Arrays
    metrics: Entries
    configs: Entries
    def __init__(self, name: _Optional[str] = ..., arrays: _Optional[_Union[Arrays, _Mapping]] = ..., metrics: _Optional[_Union[Entries, _Mapping]] = ..., configs: _Optional[_Union[Entries, _Mapping]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("run_id", "message_id", "src_node_id", "dst_node_id", "reply_to_message_id", "group_id", "created_at_s", "ttl_s", "message_type")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SRC_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    DST_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    REPLY_TO_MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_S_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    message_id: str
    src_node_id: int
    dst_node_id: int
    reply_to_message_id: str
    group_id: str
    created_at_s: float
    ttl_s: float
    message_type: str
    def __init__(self, run_id: _Optional[int] = ..., message_id: _Optional[str] = ..., src_node_id: _Optional[int] = ..., dst_node_id: _Optional[int] = ..., reply_to_message_id: _Optional[str] = ..., group_id: _Optional[str] = ..., created_at_s: _Optional[float] = ..., ttl_s: _Optional[float] = ..., message_type: _Optional[str] = ...) -> None: ...

class AppError(_message.Message):
    __slots__ = ("code", "reason")
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("metadata", "records", "error")
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    metadata: Metadata
    records: _containers.RepeatedCompositeFieldContainer[Record]
    error: AppError
    def __init__(self, metadata: _Optional[_Union[Metadata, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., error: _Optional[_Union[AppError, _Mapping]] = ...) -> None: ...

class EnrollRequest(_message.Message):
    __slots__ = ("token", "csr_pem")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    token: str
    csr_pem: bytes
    def __init__(self, token: _Optional[str] = ..., csr_pem: _Optional[bytes] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("certificate_pem", "ca_pem", "client", "node_id", "fleet_address")
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FLEET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    ca_pem: bytes
    client: str
    node_id: int
    fleet_address: str
    def __init__(self, certificate_pem: _Optional[bytes] = ..., ca_pem: _Optional[bytes] = ..., client: _Optional[str] = ..., node_id: _Optional[int] = ..., fleet_address: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("csr_pem",)
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    csr_pem: bytes
    def __init__(self, csr_pem: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "client", "version", "relay")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RELAY_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    client: str
    version: str
    relay: bool
    def __init__(self, protocol: _Optional[int] = ..., client: _Optional[str] = ..., version: _Optional[str] = ..., relay: _Optional[bool] = ...) -> None: ...

class Leaves(_message.Message):
    __slots__ = ("node_ids",)
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ("id", "run_id", "app", "envelope", "cohort_clients", "sites", "run_config", "secure_aggregation", "differential_privacy", "site_nodes", "joined_nodes")
    ID_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    COHORT_CLIENTS_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    RUN_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SECURE_AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    DIFFERENTIAL_PRIVACY_FIELD_NUMBER: _ClassVar[int]
    SITE_NODES_FIELD_NUMBER: _ClassVar[int]
    JOINED_NODES_FIELD_NUMBER: _ClassVar[int]
    id: str
    run_id: int
    app: App
    envelope: Envelope
    cohort_clients: int
    sites: int
    run_config: _containers.RepeatedCompositeFieldContainer[Entry]
    secure_aggregation: bool
    differential_privacy: bool
    site_nodes: bytes
    joined_nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., run_id: _Optional[int] = ..., app: _Optional[_Union[App, _Mapping]] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., cohort_clients: _Optional[int] = ..., sites: _Optional[int] = ..., run_config: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., secure_aggregation: _Optional[bool] = ..., differential_privacy: _Optional[bool] = ..., site_nodes: _Optional[bytes] = ..., joined_nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class App(_message.Message):
    __slots__ = ("name", "sha256", "archive", "signature")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: str
    archive: Blob
    signature: bytes
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[str] = ..., archive: _Optional[_Union[Blob, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("instruction_id",)
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    def __init__(self, instruction_id: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("instruction_id", "envelope", "refused", "file")
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    envelope: Envelope
    refused: str
    file: Blob
    def __init__(self, instruction_id: _Optional[str] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., refused: _Optional[str] = ..., file: _Optional[_Union[Blob, _Mapping]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("hello", "progress", "reply", "leaves")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    progress: Progress
    reply: Reply
    leaves: Leaves
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., reply: _Optional[_Union[Reply, _Mapping]] = ..., leaves: _Optional[_Union[Leaves, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("node_id", "lease_s", "server_time_s", "chunk_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_S_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    lease_s: float
    server_time_s: float
    chunk_bytes: int
    def __init__(self, node_id: _Optional[int] = ..., lease_s: _Optional[float] = ..., server_time_s: _Optional[float] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class ReplyAck(_message.Message):
    __slots__ = ("instruction_id",)
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    def __init__(self, instruction_id: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("instruction_id", "reason")
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    reason: str
    def __init__(self, instruction_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "instruction", "ack", "cancel")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    instruction: Instruction
    ack: ReplyAck
    cancel: Cancel
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., instruction: _Optional[_Union[Instruction, _Mapping]] = ..., ack: _Optional[_Union[ReplyAck, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("blob_id", "offset", "chunk_bytes")
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    blob_id: str
    offset: int
    chunk_bytes: int
    def __init__(self, blob_id: _Optional[str] = ..., offset: _Optional[int] = ..., chunk_bytes: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class UploadOpen(_message.Message):
    __slots__ = ("instruction_id", "blob", "offset")
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    blob: Blob
    offset: int
    def __init__(self, instruction_id: _Optional[str] = ..., blob: _Optional[_Union[Blob, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class UploadMessage(_message.Message):
    __slots__ = ("open", "chunk")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    open: UploadOpen
    chunk: Chunk
    def __init__(self, open: _Optional[_Union[UploadOpen, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class UploadState(_message.Message):
    __slots__ = ("received_bytes", "complete")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    complete: bool
    def __init__(self, received_bytes: _Optional[int] = ..., complete: _Optional[bool] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SiteName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class SiteTags(_message.Message):
    __slots__ = ("name", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class RunId(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class Site(_message.Message):
    __slots__ = ("name", "node_id", "state", "seen_at_s", "certificate_until_s", "version", "tags")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SEEN_AT_S_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_UNTIL_S_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_id: int
    state: str
    seen_at_s: float
    certificate_until_s: float
    version: str
    tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., node_id: _Optional[int] = ..., state: _Optional[str] = ..., seen_at_s: _Optional[float] = ..., certificate_until_s: _Optional[float] = ..., version: _Optional[str] = ..., tags: _Optional[_Iterable[str]] = ...) -> None: ...

class SiteList(_message.Message):
    __slots__ = ("sites",)
    SITES_FIELD_NUMBER: _ClassVar[int]
    sites: _containers.RepeatedCompositeFieldContainer[Site]
    def __init__(self, sites: _Optional[_Iterable[_Union[Site, _Mapping]]] = ...) -> None: ...

class ServerStatus(_message.Message):
    __slots__ = ("version", "started_at_s", "connected", "enrolled", "runs")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ENROLLED_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    version: str
    started_at_s: float
    connected: int
    enrolled: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, version: _Optional[str] = ..., started_at_s: _Optional[float] = ..., connected: _Optional[int] = ..., enrolled: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("id", "app", "sha256", "status", "cause", "round", "rounds", "submitted_at_s", "finished_at_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_S_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    app: str
    sha256: str
    status: str
    cause: str
    round: int
    rounds: int
    submitted_at_s: float
    finished_at_s: float
    def __init__(self, id: _Optional[int] = ..., app: _Optional[str] = ..., sha256: _Optional[str] = ..., status: _Optional[str] = ..., cause: _Optional[str] = ..., round: _Optional[int] = ..., rounds: _Optional[int] = ..., submitted_at_s: _Optional[float] = ..., finished_at_s: _Optional[float] = ...) -> None: ...

class RunList(_message.Message):
    __slots__ = ("runs",)
    RUNS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class RunDetail(_message.Message):
    __slots__ = ("run", "events")
    RUN_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    run: Run
    events: _containers.RepeatedCompositeFieldContainer[RunEvent]
    def __init__(self, run: _Optional[_Union[Run, _Mapping]] = ..., events: _Optional[_Iterable[_Union[RunEvent, _Mapping]]] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("at_s", "kind", "json")
    AT_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    at_s: float
    kind: str
    json: str
    def __init__(self, at_s: _Optional[float] = ..., kind: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class EventList(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RunEvent]
    def __init__(self, events: _Optional[_Iterable[_Union[RunEvent, _Mapping]]] = ...) -> None: ...

class InviteRequest(_message.Message):
    __slots__ = ("name", "hours")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOURS_FIELD_NUMBER: _ClassVar[int]
    name: str
    hours: float
    def __init__(self, name: _Optional[str] = ..., hours: _Optional[float] = ...) -> None: ...

class Invitation(_message.Message):
    __slots__ = ("token", "expires_at_s", "ca_fingerprint", "enroll_address")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_S_FIELD_NUMBER: _ClassVar[int]
    CA_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ENROLL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    token: str
    expires_at_s: float
    ca_fingerprint: str
    enroll_address: str
    def __init__(self, token: _Optional[str] = ..., expires_at_s: _Optional[float] = ..., ca_fingerprint: _Optional[str] = ..., enroll_address: _Optional[str] = ...) -> None: ...

class SubmitOpen(_message.Message):
    __slots__ = ("size_bytes", "name", "settings", "signature")
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    size_bytes: int
    name: str
    settings: _containers.RepeatedScalarFieldContainer[str]
    signature: bytes
    def __init__(self, size_bytes: _Optional[int] = ..., name: _Optional[str] = ..., settings: _Optional[_Iterable[str]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SubmitMessage(_message.Message):
    __slots__ = ("open", "zip")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ZIP_FIELD_NUMBER: _ClassVar[int]
    open: SubmitOpen
    zip: bytes
    def __init__(self, open: _Optional[_Union[SubmitOpen, _Mapping]] = ..., zip: _Optional[bytes] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    def __init__(self, run_id: _Optional[int] = ...) -> None: ...

class PullMessage(_message.Message):
    __slots__ = ("file", "data")
    FILE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    file: str
    data: bytes
    def __init__(self, file: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class WorkerStart(_message.Message):
    __slots__ = ("run_id", "app_dir", "run_dir", "spool_dir", "settings", "cohorts", "sha256", "slow_lines")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    APP_DIR_FIELD_NUMBER: _ClassVar[int]
    RUN_DIR_FIELD_NUMBER: _ClassVar[int]
    SPOOL_DIR_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    COHORTS_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SLOW_LINES_FIELD_NUMBER: _ClassVar[int]
    run_id: int
    app_dir: str
    run_dir: str
    spool_dir: str
    settings: _containers.RepeatedScalarFieldContainer[str]
    cohorts: _containers.RepeatedCompositeFieldContainer[Cohort]
    sha256: str
    slow_lines: _containers.RepeatedCompositeFieldContainer[SlowLine]
    def __init__(self, run_id: _Optional[int] = ..., app_dir: _Optional[str] = ..., run_dir: _Optional[str] = ..., spool_dir: _Optional[str] = ..., settings: _Optional[_Iterable[str]] = ..., cohorts: _Optional[_Iterable[_Union[Cohort, _Mapping]]] = ..., sha256: _Optional[str] = ..., slow_lines: _Optional[_Iterable[_Union[SlowLine, _Mapping]]] = ...) -> None: ...

class SlowLine(_message.Message):
    __slots__ = ("node_id", "bytes_per_s")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    bytes_per_s: int
    def __init__(self, node_id: _Optional[int] = ..., bytes_per_s: _Optional[int] = ...) -> None: ...

class Cohort(_message.Message):
    __slots__ = ("group_id", "node_ids", "relays")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    relays: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group_id: _Optional[str] = ..., node_ids: _Optional[_Iterable[int]] = ..., relays: _Optional[_Iterable[int]] = ...) -> None: ...

class Nodes(_message.Message):
    __slots__ = ("node_ids", "names", "relays")
    NODE_IDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    node_ids: _containers.RepeatedScalarFieldContainer[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    relays: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_ids: _Optional[_Iterable[int]] = ..., names: _Optional[_Iterable[str]] = ..., relays: _Optional[_Iterable[int]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("key", "envelopes", "quorum", "deadline_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    key: str
    envelopes: _containers.RepeatedCompositeFieldContainer[Envelope]
    quorum: int
    deadline_s: float
    def __init__(self, key: _Optional[str] = ..., envelopes: _Optional[_Iterable[_Union[Envelope, _Mapping]]] = ..., quorum: _Optional[int] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class StepReply(_message.Message):
    __slots__ = ("key", "node_id", "envelope", "blob_dir", "slow_bytes_per_s")
    KEY_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    BLOB_DIR_FIELD_NUMBER: _ClassVar[int]
    SLOW_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    key: str
    node_id: int
    envelope: Envelope
    blob_dir: str
    slow_bytes_per_s: int
    def __init__(self, key: _Optional[str] = ..., node_id: _Optional[int] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., blob_dir: _Optional[str] = ..., slow_bytes_per_s: _Optional[int] = ...) -> None: ...

class StepEnd(_message.Message):
    __slots__ = ("key", "bytes_sent", "bytes_received")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BYTES_RECEIVED_FIELD_NUMBER: _ClassVar[int]
    key: str
    bytes_sent: int
    bytes_received: int
    def __init__(self, key: _Optional[str] = ..., bytes_sent: _Optional[int] = ..., bytes_received: _Optional[int] = ...) -> None: ...

class WorkerReady(_message.Message):
    __slots__ = ("rounds", "run_config", "secure_aggregation", "differential_privacy", "tags", "cohort")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    RUN_CONFIG_FIELD_NUMBER: _ClassVar[int]
    SECURE_AGGREGATION_FIELD_NUMBER: _ClassVar[int]
    DIFFERENTIAL_PRIVACY_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    run_config: _containers.RepeatedCompositeFieldContainer[Entry]
    secure_aggregation: bool
    differential_privacy: bool
    tags: _containers.RepeatedScalarFieldContainer[str]
    cohort: int
    def __init__(self, rounds: _Optional[int] = ..., run_config: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., secure_aggregation: _Optional[bool] = ..., differential_privacy: _Optional[bool] = ..., tags: _Optional[_Iterable[str]] = ..., cohort: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ("group_id", "blob_ids")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    BLOB_IDS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    blob_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_id: _Optional[str] = ..., blob_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Note(_message.Message):
    __slots__ = ("kind", "json")
    KIND_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    json: str
    def __init__(self, kind: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("status", "cause")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    status: str
    cause: str
    def __init__(self, status: _Optional[str] = ..., cause: _Optional[str] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("step", "forget", "note", "finished", "ready")
    STEP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    step: Step
    forget: Forget
    note: Note
    finished: Finished
    ready: WorkerReady
    def __init__(self, step: _Optional[_Union[Step, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., note: _Optional[_Union[Note, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., ready: _Optional[_Union[WorkerReady, _Mapping]] = ...) -> None: ...

class DaemonMessage(_message.Message):
    __slots__ = ("start", "nodes", "reply", "end", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: WorkerStart
    nodes: Nodes
    reply: StepReply
    end: StepEnd
    stop: Empty
    def __init__(self, start: _Optional[_Union[WorkerStart, _Mapping]] = ..., nodes: _Optional[_Union[Nodes, _Mapping]] = ..., reply: _Optional[_Union[StepReply, _Mapping]] = ..., end: _Optional[_Union[StepEnd, _Mapping]] = ..., stop: _Optional[_Union[Empty, _Mapping]] = ...) -> None: ...

class TrainingStart(_message.Message):
    __slots__ = ("app_dir", "sha256", "node_config", "device", "node_id", "client_dir", "alone")
    APP_DIR_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    NODE_CONFIG_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_DIR_FIELD_NUMBER: _ClassVar[int]
    ALONE_FIELD_NUMBER: _ClassVar[int]
    app_dir: str
    sha256: str
    node_config: _containers.RepeatedCompositeFieldContainer[Entry]
    device: str
    node_id: int
    client_dir: str
    alone: bool
    def __init__(self, app_dir: _Optional[str] = ..., sha256: _Optional[str] = ..., node_config: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., device: _Optional[str] = ..., node_id: _Optional[int] = ..., client_dir: _Optional[str] = ..., alone: _Optional[bool] = ...) -> None: ...

class TrainingReady(_message.Message):
    __slots__ = ("device", "problem")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    device: str
    problem: str
    def __init__(self, device: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class TrainingWork(_message.Message):
    __slots__ = ("instruction", "blob_dir", "reply_dir", "state", "state_dir")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    BLOB_DIR_FIELD_NUMBER: _ClassVar[int]
    REPLY_DIR_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_DIR_FIELD_NUMBER: _ClassVar[int]
    instruction: Instruction
    blob_dir: str
    reply_dir: str
    state: bytes
    state_dir: str
    def __init__(self, instruction: _Optional[_Union[Instruction, _Mapping]] = ..., blob_dir: _Optional[str] = ..., reply_dir: _Optional[str] = ..., state: _Optional[bytes] = ..., state_dir: _Optional[str] = ...) -> None: ...

class TrainingStep(_message.Message):
    __slots__ = ("instruction_id",)
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    def __init__(self, instruction_id: _Optional[str] = ...) -> None: ...

class TrainingDone(_message.Message):
    __slots__ = ("instruction_id", "envelope", "state")
    INSTRUCTION_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    instruction_id: str
    envelope: Envelope
    state: bytes
    def __init__(self, instruction_id: _Optional[str] = ..., envelope: _Optional[_Union[Envelope, _Mapping]] = ..., state: _Optional[bytes] = ...) -> None: ...

class Inspection(_message.Message):
    __slots__ = ("train_samples", "test_samples", "problem", "counted")
    TRAIN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TEST_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    train_samples: int
    test_samples: int
    problem: str
    counted: bool
    def __init__(self, train_samples: _Optional[int] = ..., test_samples: _Optional[int] = ..., problem: _Optional[str] = ..., counted: _Optional[bool] = ...) -> None: ...

class TrainerMessage(_message.Message):
    __slots__ = ("ready", "step", "done", "inspection")
    READY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    INSPECTION_FIELD_NUMBER: _ClassVar[int]
    ready: TrainingReady
    step: TrainingStep
    done: TrainingDone
    inspection: Inspection
    def __init__(self, ready: _Optional[_Union[TrainingReady, _Mapping]] = ..., step: _Optional[_Union[TrainingStep, _Mapping]] = ..., done: _Optional[_Union[TrainingDone, _Mapping]] = ..., inspection: _Optional[_Union[Inspection, _Mapping]] = ...) -> None: ...

class AgentOrder(_message.Message):
    __slots__ = ("start", "work", "inspect")
    START_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    INSPECT_FIELD_NUMBER: _ClassVar[int]
    start: TrainingStart
    work: TrainingWork
    inspect: Empty
    def __init__(self, start: _Optional[_Union[TrainingStart, _Mapping]] = ..., work: _Optional[_Union[TrainingWork, _Mapping]] = ..., inspect: _Optional[_Union[Empty, _Mapping]] = ...) -> None: ...
