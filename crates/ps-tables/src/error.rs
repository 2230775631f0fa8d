//! Errors of partitioners, placements, tables and requests.

use distribute_optim::{InvalidHyperparameter, UpdateError};
use distribute_tensor::DType;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. A failed operation has changed nothing, unless the documentation of the error states
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A partitioner was created with an invalid parameter.
    #[error("{partitioner}: {parameter} is 0, but must be at least 1")]
    PartitionerParameter {
        /// The partitioner's type.
        partitioner: &'static str,
        /// The name of the parameter.
        parameter: &'static str,
    },
    /// A variable was to be split along an axis that is not in its shape.
    #[error("{partitioner}: there is no axis {axis} to partition in shape {shape:?}")]
    PartitionAxis {
        /// The partitioner's type.
        partitioner: &'static str,
        /// The requested axis.
        axis: usize,
        /// The variable's shape.
        shape: Vec<usize>,
    },
    /// A partitioner returned an unusable result, or a variable was [recorded](crate::Placement::record) with a number
    /// of servers other than its number of shards.
    #[error(
        "the partitioner returned {partitions:?} for shape {shape:?}: it must give one number for each \
         axis, at least 1 for the first and 1 for all others, because variables are only partitioned along \
         axis 0"
    )]
    Partitions {
        /// The number of parts along each axis that the partitioner returned, or the number of servers.
        partitions: Vec<usize>,
        /// The variable's shape.
        shape: Vec<usize>,
    },
    /// The number of rows differs from the expected number.
    #[error("{operation}: expected {expected} rows, found {found}")]
    Rows {
        /// The operation that failed.
        operation: &'static str,
        /// The expected number of rows.
        expected: usize,
        /// The actual number of rows.
        found: usize,
    },
    /// An id is not the index of a row of the table.
    #[error("{operation}: id {id} at position {position} is outside the table, which has {rows} rows")]
    Id {
        /// The operation that failed.
        operation: &'static str,
        /// The requested id.
        id: i64,
        /// The position of the id in the request.
        position: usize,
        /// The number of rows of the table.
        rows: usize,
    },
    /// There are no servers to place variables on.
    #[error(
        "placement: there is no server to place variables on; a cluster needs at least one task of the job ps"
    )]
    NoServers,
    /// There is no server with this index.
    #[error("placement: there is no server {server}, but {servers}, counted from 0")]
    NoSuchServer {
        /// The index of the server.
        server: usize,
        /// The number of servers.
        servers: usize,
    },
    /// A variable with this name was already placed.
    #[error("placement: a variable named {name:?} exists already; names are unique")]
    PlacedTwice {
        /// The name of the variable.
        name: String,
    },
    /// No variable with this name was placed.
    #[error("placement: there is no variable named {name:?} to colocate with; create it first")]
    NotPlaced {
        /// The name of the variable.
        name: String,
    },
    /// The shard does not contain this row.
    #[error(
        "{operation}: row {row} at position {position} is outside table {table}, which has {rows} rows; \
         were global rows given to a shard?"
    )]
    Row {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The requested row.
        row: usize,
        /// The position of the row in the request.
        position: usize,
        /// The number of rows of the table.
        rows: usize,
    },
    /// A tensor does not have the shape that the table requires.
    #[error(
        "{operation}: table {table} takes shape {expected:?}, found {found:?}; values are never broadcast"
    )]
    Shape {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The expected shape.
        expected: Vec<usize>,
        /// The shape of the tensor.
        found: Vec<usize>,
    },
    /// A tensor does not have the dtype of the table.
    #[error("{operation}: table {table} is {expected}, found {found}; cast it first")]
    DType {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The table's dtype.
        expected: DType,
        /// The dtype of the tensor.
        found: DType,
    },
    /// The operation is not defined for the table's dtype.
    #[error("{operation} is not defined for table {table}, which is {dtype}")]
    UnsupportedDType {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The table's dtype.
        dtype: DType,
    },
    /// An integer would be divided by 0.
    #[error("{operation}: an integer of table {table} would be divided by 0")]
    DivisionByZero {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
    },
    /// A gradient contains a NaN or infinite value, and the push [rejects](crate::Push::finite) such gradients.
    #[error(
        "{operation}: the gradient of table {table} is {value} at element {element}; nothing was applied. Look for a division by 0, a logarithm of 0, or a learning rate that is too high"
    )]
    NotFinite {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The NaN or infinite value.
        value: f64,
        /// The index of the element in the pushed gradient, in row-major order.
        element: usize,
    },
    /// A gradient was pushed to a table without a rule.
    #[error("{operation}: table {table} has no update rule; give it one with set_rule")]
    NoRule {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
    },
    /// The table already has a different rule, for which its slots were created.
    #[error(
        "set_rule: table {table} is already updated by {present}, and cannot be updated by {found} as \
             well"
    )]
    RuleSet {
        /// The name of the table.
        table: String,
        /// The table's current rule.
        present: String,
        /// The rule that was to be set.
        found: String,
    },
    /// The rule changes rows without a gradient. It cannot update a dynamic table, in which most ids have no row.
    #[error(
        "set_rule: {rule} also moves rows without a gradient, but dynamic table {table} has only rows that \
         were pushed; use its lazy form"
    )]
    MovesAbsentRows {
        /// The name of the table.
        table: String,
        /// The name of the rule.
        rule: &'static str,
    },
    /// The rule needs complete variables, but a table may contain only some rows of a variable.
    #[error(
        "set_rule: {rule} needs a complete variable, but table {table} may have only some of its rows; use a rule of \
         elements or rows"
    )]
    NeedsVariable {
        /// The name of the table.
        table: String,
        /// The name of the rule.
        rule: &'static str,
    },
    /// The slots to be restored are not those of the table's rule.
    #[error("restore: table {table} has slots {expected:?}, found {found:?}")]
    Slots {
        /// The name of the table.
        table: String,
        /// The slots of the table's rule.
        expected: Vec<&'static str>,
        /// The slots to be restored.
        found: Vec<String>,
    },
    /// The table, or a copy of it, does not fit into memory.
    #[error("table {table}: there is no memory for {dtype}{shape:?}; use more servers")]
    NoMemory {
        /// The name of the table.
        table: String,
        /// The shape of the table; for a dynamic table, that of a row.
        shape: Vec<usize>,
        /// The table's dtype.
        dtype: DType,
    },
    /// The tables of a server would exceed their memory limit.
    #[error(
        "{operation}: table {table} would take {bytes} bytes, but {taken} of the {limit} bytes for the \
         tables of this server are in use; use more servers, or raise ServerOptions::memory"
    )]
    Budget {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The additional memory in bytes that the operation requires.
        bytes: usize,
        /// The memory in bytes that all tables occupy.
        taken: usize,
        /// The maximum memory in bytes that the tables may occupy.
        limit: usize,
    },
    /// The partition of a variable is for another number of rows than the variable has.
    #[error(
        "create: a variable of shape {shape:?} has {expected} rows, but its partition divides {found}; the shape is that \
         of the complete variable, also for a shard"
    )]
    PartitionRows {
        /// The shape that was given.
        shape: Vec<usize>,
        /// The number of rows of this shape.
        expected: usize,
        /// The number of rows of the partition.
        found: usize,
    },
    /// The variable has no shard with this index.
    #[error("create: there is no shard {shard} of a variable of shape {shape:?} in {shards} shards")]
    NoShard {
        /// The index of the requested shard.
        shard: usize,
        /// The shape of the variable.
        shape: Vec<usize>,
        /// The variable's number of shards.
        shards: usize,
    },
    /// A setting of a dynamic table is out of range.
    #[error("dynamic table {table}: {parameter} is {value}, but must be {range}")]
    DynamicParameter {
        /// The name of the table.
        table: String,
        /// The name of the setting.
        parameter: &'static str,
        /// The value of the setting.
        value: u64,
        /// The valid range.
        range: &'static str,
    },
    /// An id occurs twice among the rows to be restored.
    #[error("restore: dynamic table {table} was given id {id} twice")]
    IdTwice {
        /// The name of the table.
        table: String,
        /// The id that occurs twice.
        id: i64,
    },
    /// The server has no table with this name.
    #[error("{operation}: there is no table {table}; create it first, on this server")]
    NoSuchTable {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
    },
    /// A table with this name exists, but with a different specification.
    #[error(
        "create: table {table} exists already, {present}, but {found} with these initial values was \
         requested; remove it first, or choose another name"
    )]
    Exists {
        /// The name of the table.
        table: String,
        /// A description of the existing table.
        present: String,
        /// A description of the requested table.
        found: String,
    },
    /// The name of a table is empty or too long.
    #[error("create: a table's name has 1 to {limit} bytes, and this one has {length}")]
    TableName {
        /// The length of the name in bytes.
        length: usize,
        /// The maximum length in bytes.
        limit: usize,
    },
    /// The operation is not defined for this kind of table.
    #[error("{operation} is not defined for {kind} table {table}; {instead}")]
    WrongKind {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The kind of the table.
        kind: &'static str,
        /// The operation to use instead.
        instead: &'static str,
    },
    /// The table has no part with this index.
    #[error("{operation}: table {table} has {parts} parts, but no part {part}")]
    NoPart {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The number of parts of the table.
        parts: usize,
        /// The index of the requested part.
        part: usize,
    },
    /// A batch contains a batch.
    #[error("batch: request {position} of it is a batch itself; put all requests into one")]
    NestedBatch {
        /// The position of the inner batch.
        position: usize,
    },
    /// A client has repeated a push so late that the server no longer knows whether it was applied.
    #[error(
        "push {sequence} of client {client:x} is too old to determine whether it was applied: the latest \
         is {highest}, and {window} are remembered; read the variable again before you continue"
    )]
    PushExpired {
        /// The id of the client.
        client: u64,
        /// The sequence number of the push.
        sequence: u64,
        /// The highest sequence number that was received.
        highest: u64,
        /// The number of a client's latest pushes that a server remembers.
        window: u64,
    },
    /// The server has discarded the record of a client, so it does not know whether the client's push is a repetition
    /// of one that was applied.
    #[error(
        "push {sequence} of client {client:x} is too old to determine whether it was applied: {limit} \
         clients are remembered, and this one no longer is; read the variable again, over a new connection"
    )]
    ClientForgotten {
        /// The id of the client.
        client: u64,
        /// The sequence number of the push.
        sequence: u64,
        /// The maximum number of clients that the server remembers.
        limit: usize,
    },
    /// More clients push at the same time than the server can remember.
    #[error(
        "push: {limit} clients are remembered, all have pushes in progress, and client {client:x} is one \
         more; retry later"
    )]
    TooManyClients {
        /// The id of the client that does not fit.
        client: u64,
        /// The maximum number of clients.
        limit: usize,
    },
    /// A change comes from a closure of a job other than the current one.
    #[error(
        "a change of a closure of job {job:x} is refused because job {present:x} has begun: the \
         coordinator was restarted, and this worker belongs to the previous one"
    )]
    OtherJob {
        /// The number of the closure's job.
        job: u64,
        /// The number of the latest job.
        present: u64,
    },
    /// The number of a job is much greater than that of the latest job. Few or no jobs could begin after it.
    #[error(
        "begin_job: job {job:x} is too far ahead of {newest:x}, the latest job: each job takes the next \
         number"
    )]
    JobTooGreat {
        /// The number of the job.
        job: u64,
        /// The number of the latest job.
        newest: u64,
    },
    /// A change comes from a closure that has ended.
    #[error(
        "a change of closure {closure} is refused because all closures below {floor} have ended: this \
         worker was replaced, and another one has run the closure"
    )]
    ClosureEnded {
        /// The sequence number of the closure.
        closure: u64,
        /// The lowest number of a closure that may still be running.
        floor: u64,
    },
    /// Too many closures have changed a table while an older closure has not ended.
    #[error(
        "a change of closure {closure} is refused because a table remembers {limit} changes of closures, \
         all since closure {oldest}, which has not ended; retry after it has"
    )]
    TooManyClosures {
        /// The sequence number of the closure.
        closure: u64,
        /// The number of the oldest closure in the record.
        oldest: u64,
        /// The maximum number of entries, each for up to 64 changes of a closure.
        limit: usize,
    },
    /// The server does not record which rows change, because it has no folder.
    #[error(
        "changed: table {table}: this server does not record which rows change, because it has no folder: give it one"
    )]
    NotRecorded {
        /// The name of the table.
        table: String,
    },
    /// The request cannot be executed exactly once for a closure. Only changes of the contents of one table can.
    #[error(
        "{operation} cannot be executed exactly once for a closure: only changes of the contents of \
             one table can"
    )]
    NotOnce {
        /// The requested operation.
        operation: &'static str,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
    /// A hyper-parameter of a rule is out of range.
    #[error(transparent)]
    Rule(#[from] InvalidHyperparameter),
    /// A rule could not be applied.
    #[error("{operation}: table {table}: {source}")]
    Update {
        /// The operation that failed.
        operation: &'static str,
        /// The name of the table.
        table: String,
        /// The error of the rule.
        source: UpdateError,
    },
}
