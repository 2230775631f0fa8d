//! The errors of partitioners, placements, tables and their requests.

use distribute_optim::{InvalidHyperparameter, UpdateError};
use distribute_tensor::DType;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. The failed operation has changed nothing, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A partitioner was created with an invalid parameter.
    #[error("{partitioner}: {parameter} is 0, but must be at least 1")]
    PartitionerParameter {
        /// The partitioner's type.
        partitioner: &'static str,
        /// The parameter.
        parameter: &'static str,
    },
    /// A partitioner was asked to split along an axis that the shape does not have.
    #[error("{partitioner}: there is no axis {axis} to cut along in shape {shape:?}")]
    PartitionAxis {
        /// The partitioner's type.
        partitioner: &'static str,
        /// The axis asked for.
        axis: usize,
        /// The variable's shape.
        shape: Vec<usize>,
    },
    /// A partitioner returned an unusable result.
    #[error(
        "the partitioner answers {partitions:?} for shape {shape:?}: it must give one number for each axis, at least 1 for the first and 1 for all others, since variables are cut along axis 0 alone"
    )]
    Partitions {
        /// The result: the number of parts along each axis.
        partitions: Vec<usize>,
        /// The variable's shape.
        shape: Vec<usize>,
    },
    /// The number of rows differs from the expected one.
    #[error("{operation}: expected {expected} rows, found {found}")]
    Rows {
        /// The operation that failed.
        operation: &'static str,
        /// The expected number of rows.
        expected: usize,
        /// The actual number of rows.
        found: usize,
    },
    /// An id is not a row of the table.
    #[error("{operation}: id {id} at position {position} is outside of the table, which has {rows} rows")]
    Id {
        /// The operation that failed.
        operation: &'static str,
        /// The id.
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
    /// There is no server with this number.
    #[error("placement: there is no server {server}, but {servers}, counted from 0")]
    NoSuchServer {
        /// The number of the server.
        server: usize,
        /// The number of servers.
        servers: usize,
    },
    /// A variable of this name was already placed.
    #[error("placement: there is a variable named {name:?} already; names are unique")]
    PlacedTwice {
        /// The name.
        name: String,
    },
    /// No variable of this name was placed.
    #[error("placement: there is no variable named {name:?} to colocate with; create it first")]
    NotPlaced {
        /// The name.
        name: String,
    },
    /// The shard does not have this row.
    #[error(
        "{operation}: row {row} at position {position} is outside of table {table}, which has {rows} rows; were global rows given to a shard?"
    )]
    Row {
        /// The operation that failed.
        operation: &'static str,
        /// The table.
        table: String,
        /// The row.
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
        /// The table.
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
        /// The table.
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
        /// The table.
        table: String,
        /// Its dtype.
        dtype: DType,
    },
    /// An integer would be divided by 0.
    #[error("{operation}: an integer of table {table} would be divided by 0")]
    DivisionByZero {
        /// The operation that failed.
        operation: &'static str,
        /// The table.
        table: String,
    },
    /// A gradient is NaN or infinite, and the push [refuses](crate::Push::finite) such gradients.
    #[error(
        "{operation}: the gradient of table {table} is {value} at element {element}; nothing was applied. Look for a division by 0, a logarithm of 0, or a learning rate that is too high"
    )]
    NotFinite {
        /// The operation that failed.
        operation: &'static str,
        /// The table.
        table: String,
        /// The value of the element.
        value: f64,
        /// The index of the element in the pushed gradient, in row-major order.
        element: usize,
    },
    /// A gradient was pushed to a table without a rule.
    #[error("{operation}: table {table} has no update rule; give it one with set_rule")]
    NoRule {
        /// The operation that failed.
        operation: &'static str,
        /// The table.
        table: String,
    },
    /// The table already has another rule, for which its slots were created.
    #[error("set_rule: table {table} is updated by {present} already, and cannot be by {found} too")]
    RuleSet {
        /// The table.
        table: String,
        /// The rule of the table.
        present: String,
        /// The rule that was to be set.
        found: String,
    },
    /// The rule cannot be used with a dynamic table, which only has rows that were pushed.
    #[error(
        "set_rule: {rule} moves rows without a gradient too, but dynamic table {table} has only rows that were pushed; use its lazy form"
    )]
    MovesAbsentRows {
        /// The table.
        table: String,
        /// The rule.
        rule: &'static str,
    },
    /// The slots to be restored are not those of the table's rule.
    #[error("restore: table {table} has slots {expected:?}, found {found:?}")]
    Slots {
        /// The table.
        table: String,
        /// The slots of its rule.
        expected: Vec<&'static str>,
        /// The slots to be restored.
        found: Vec<String>,
    },
    /// The values of the table do not fit into memory.
    #[error("table {table}: there is no memory for {dtype}{shape:?}; use more servers")]
    NoMemory {
        /// The table.
        table: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its dtype.
        dtype: DType,
    },
    /// The tables of a server would exceed their memory limit.
    #[error(
        "{operation}: table {table} would take {bytes} bytes, and of the {limit} that the tables of this server may take, {taken} are taken; \
         use more servers, or let its tables take more (ServerOptions::memory)"
    )]
    Budget {
        /// The operation.
        operation: &'static str,
        /// The table.
        table: String,
        /// The number of additional bytes that the table would take.
        bytes: usize,
        /// The number of bytes that all tables take.
        taken: usize,
        /// The maximum number of bytes that they may take.
        limit: usize,
    },
    /// The variable has no shard with this number.
    #[error("create: there is no shard {shard} of a variable of shape {shape:?} in {shards} shards")]
    NoShard {
        /// The requested shard.
        shard: usize,
        /// The shape of the variable.
        shape: Vec<usize>,
        /// The number of its shards.
        shards: usize,
    },
    /// A setting of a dynamic table is out of range.
    #[error("dynamic table {table}: {parameter} is {value}, but must be {range}")]
    DynamicParameter {
        /// The table.
        table: String,
        /// The setting.
        parameter: &'static str,
        /// The value of the setting.
        value: u64,
        /// The valid range.
        range: &'static str,
    },
    /// An id occurs twice among the rows to be restored.
    #[error("restore: dynamic table {table} was given id {id} twice")]
    IdTwice {
        /// The table.
        table: String,
        /// The id.
        id: i64,
    },
    /// The server has no table of this name.
    #[error("{operation}: there is no table {table}; create it first, on this server")]
    NoSuchTable {
        /// The operation that failed.
        operation: &'static str,
        /// The name.
        table: String,
    },
    /// A table of this name exists, with another specification.
    #[error(
        "create: there is a table {table} already, {present}, and {found} with these first values was asked for; remove it first, or take another name"
    )]
    Exists {
        /// The name.
        table: String,
        /// The existing table.
        present: String,
        /// The requested table.
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
    /// The operation is not defined for tables of this kind.
    #[error("{operation} is not defined for {kind} table {table}; {instead}")]
    WrongKind {
        /// The operation that failed.
        operation: &'static str,
        /// The table.
        table: String,
        /// Its kind.
        kind: &'static str,
        /// The operation to use instead.
        instead: &'static str,
    },
    /// The table has no part with this number.
    #[error("{operation}: table {table} has {parts} parts, and there is none of number {part}")]
    NoPart {
        /// The operation that failed.
        operation: &'static str,
        /// The table.
        table: String,
        /// The number of parts of the table.
        parts: usize,
        /// The requested part.
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
        "push {sequence} of client {client:x} is too old to tell whether it was applied: {highest} came after it, and {window} are remembered; read the variable again before you go on"
    )]
    PushExpired {
        /// The client.
        client: u64,
        /// The number of the push.
        sequence: u64,
        /// The highest number that was received.
        highest: u64,
        /// The number of pushes that are remembered.
        window: u64,
    },
    /// A client was forgotten, so the push that it repeats may have been applied.
    #[error(
        "push {sequence} of client {client:x} is too old to tell whether it was applied: {limit} clients are remembered, and this one is not any more; read the variable again, over a new connection"
    )]
    ClientForgotten {
        /// The client.
        client: u64,
        /// The number of the push.
        sequence: u64,
        /// The number of clients that are remembered.
        limit: usize,
    },
    /// More clients push at the same time than can be remembered.
    #[error(
        "push: {limit} clients are remembered, all have pushes under way, and client {client:x} is one more; ask again later"
    )]
    TooManyClients {
        /// The client.
        client: u64,
        /// The maximum number of clients.
        limit: usize,
    },
    /// A change comes from a closure of a job other than the current one.
    #[error(
        "a change of a closure of job {job:x} is not made, since job {present:x} is the one that has begun: the coordinator was started again, and this worker belongs to the one before"
    )]
    OtherJob {
        /// The job of the closure.
        job: u64,
        /// The job that was begun last.
        present: u64,
    },
    /// The number of a job is so high that no other job could begin after it.
    #[error(
        "begin_job: job {job:x} is too far after {newest:x}, which has begun last: each job takes the next number of those that servers know"
    )]
    JobTooGreat {
        /// The job.
        job: u64,
        /// The job that was begun last.
        newest: u64,
    },
    /// A change comes from a closure that has ended.
    #[error(
        "a change of closure {closure} is not made, since all closures below {floor} have ended: this worker was replaced, and another one has run the closure"
    )]
    ClosureEnded {
        /// The number of the closure.
        closure: u64,
        /// The lowest number of a closure that may not have ended.
        floor: u64,
    },
    /// Too many closures have changed a table while an older one had not ended.
    #[error(
        "a change of closure {closure} is not made, since {limit} changes of closures are remembered of a table, and those are the ones since closure {oldest}, which has not ended; ask again when it has"
    )]
    TooManyClosures {
        /// The number of the closure.
        closure: u64,
        /// The oldest closure that is remembered.
        oldest: u64,
        /// The maximum number of entries, each for up to 64 changes of a closure.
        limit: usize,
    },
    /// The request cannot be made exactly once for a closure.
    #[error("{operation} cannot be made for a closure once: only changes of what is in one table can")]
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
        /// The table.
        table: String,
        /// The error of the rule.
        source: UpdateError,
    },
}
