//! What can be wrong with partitioners, placements and tables, and with what they are asked for.

use distribute_optim::{InvalidHyperparameter, UpdateError};
use distribute_tensor::DType;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. What was asked for has changed nothing, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A partitioner was made with a number that it cannot take.
    #[error("{partitioner}: {parameter} is 0, but must be at least 1")]
    PartitionerParameter {
        /// The partitioner's type.
        partitioner: &'static str,
        /// The parameter.
        parameter: &'static str,
    },
    /// A partitioner was asked to cut along an axis that the shape doesn't have.
    #[error("{partitioner}: there is no axis {axis} to cut along in shape {shape:?}")]
    PartitionAxis {
        /// The partitioner's type.
        partitioner: &'static str,
        /// The axis asked for.
        axis: usize,
        /// The variable's shape.
        shape: Vec<usize>,
    },
    /// A partitioner's answer cannot be used.
    #[error(
        "the partitioner answers {partitions:?} for shape {shape:?}: it must give one number for each axis, at least 1 for the first and 1 for all others, since variables are cut along axis 0 alone"
    )]
    Partitions {
        /// Its answer.
        partitions: Vec<usize>,
        /// The variable's shape.
        shape: Vec<usize>,
    },
    /// Two numbers of rows had to be equal.
    #[error("{operation}: expected {expected} rows, found {found}")]
    Rows {
        /// What was being done.
        operation: &'static str,
        /// How many rows there had to be.
        expected: usize,
        /// How many there were.
        found: usize,
    },
    /// An id is no row of a table.
    #[error("{operation}: id {id} at position {position} is outside of the table, which has {rows} rows")]
    Id {
        /// What was being done.
        operation: &'static str,
        /// The id.
        id: i64,
        /// Where among the ids it stands.
        position: usize,
        /// How many rows the table has.
        rows: usize,
    },
    /// There is no server to place variables on.
    #[error(
        "placement: there is no server to place variables on; a cluster needs at least one task of the job ps"
    )]
    NoServers,
    /// A server was named that there is not.
    #[error("placement: there is no server {server}, but {servers}, counted from 0")]
    NoSuchServer {
        /// Its number.
        server: usize,
        /// How many there are.
        servers: usize,
    },
    /// A variable was placed before.
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
    /// A row was asked for that the shard doesn't have.
    #[error(
        "{operation}: row {row} at position {position} is outside of table {table}, which has {rows} rows; were global rows given to a shard?"
    )]
    Row {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// The row.
        row: usize,
        /// Where among the rows it stands.
        position: usize,
        /// How many rows the table has.
        rows: usize,
    },
    /// What was given has another shape than the table asks for.
    #[error(
        "{operation}: table {table} takes shape {expected:?}, found {found:?}; values are never broadcast"
    )]
    Shape {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// The shape that fits.
        expected: Vec<usize>,
        /// The shape given.
        found: Vec<usize>,
    },
    /// What was given has another dtype than the table.
    #[error("{operation}: table {table} is {expected}, found {found}; cast it first")]
    DType {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// The table's dtype.
        expected: DType,
        /// The dtype given.
        found: DType,
    },
    /// The table's dtype has no such operation.
    #[error("{operation} is not defined for table {table}, which is {dtype}")]
    UnsupportedDType {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// Its dtype.
        dtype: DType,
    },
    /// An integer would be divided by 0.
    #[error("{operation}: an integer of table {table} would be divided by 0")]
    DivisionByZero {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
    },
    /// A gradient is NaN or infinite, and the push was told to refuse that.
    #[error(
        "{operation}: the gradient of table {table} is {value} at element {element}; nothing was applied. Look for a division by 0, a logarithm of 0, or a learning rate that is too high"
    )]
    NotFinite {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// What the gradient is there.
        value: f64,
        /// Which element of those that were pushed, counted in row-major order.
        element: usize,
    },
    /// A gradient was pushed to a table that has no rule to apply it by.
    #[error("{operation}: table {table} has no update rule; give it one with set_rule")]
    NoRule {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
    },
    /// A table has another rule already, with which its slots were made.
    #[error("set_rule: table {table} is updated by {present} already, and cannot be by {found} too")]
    RuleSet {
        /// The table.
        table: String,
        /// The rule that it has.
        present: String,
        /// The rule that was given.
        found: String,
    },
    /// The rule cannot be used with a dynamic table, of which only those rows are there that were pushed.
    #[error(
        "set_rule: {rule} moves rows without a gradient too, but dynamic table {table} has only rows that were pushed; use its lazy form"
    )]
    MovesAbsentRows {
        /// The table.
        table: String,
        /// The rule.
        rule: &'static str,
    },
    /// Slots that were to be restored are not those of the table's rule.
    #[error("restore: table {table} has slots {expected:?}, found {found:?}")]
    Slots {
        /// The table.
        table: String,
        /// The slots of its rule.
        expected: Vec<&'static str>,
        /// Those that were given.
        found: Vec<String>,
    },
    /// The values of a table don't fit into memory.
    #[error("table {table}: there is no memory for {dtype}{shape:?}; use more servers")]
    NoMemory {
        /// The table.
        table: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its dtype.
        dtype: DType,
    },
    /// The tables of a server would take more memory than they may.
    #[error(
        "{operation}: table {table} would take {bytes} bytes, and of the {limit} that the tables of this server may take, {taken} are taken; \
         use more servers, or let its tables take more (ServerOptions::memory)"
    )]
    Budget {
        /// The operation.
        operation: &'static str,
        /// The table.
        table: String,
        /// The bytes that it would take, or take in addition.
        bytes: usize,
        /// The bytes that all tables take.
        taken: usize,
        /// The bytes that they may take.
        limit: usize,
    },
    /// A variable has no shard of this number.
    #[error("create: there is no shard {shard} of a variable of shape {shape:?} in {shards} shards")]
    NoShard {
        /// The shard asked for.
        shard: usize,
        /// The shape of the variable.
        shape: Vec<usize>,
        /// The number of its shards.
        shards: usize,
    },
    /// A setting of a dynamic table is one that it cannot take.
    #[error("dynamic table {table}: {parameter} is {value}, but must be {range}")]
    DynamicParameter {
        /// The table.
        table: String,
        /// The setting.
        parameter: &'static str,
        /// What it is.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// The same id stands twice among rows that are to be restored.
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
        /// What was being done.
        operation: &'static str,
        /// The name.
        table: String,
    },
    /// A table of this name was made in another way.
    #[error(
        "create: there is a table {table} already, {present}, and {found} with these first values was asked for; remove it first, or take another name"
    )]
    Exists {
        /// The name.
        table: String,
        /// What is there.
        present: String,
        /// What was asked for.
        found: String,
    },
    /// The name of a table is empty or too long.
    #[error("create: a table's name has 1 to {limit} bytes, and this one has {length}")]
    TableName {
        /// How long it is.
        length: usize,
        /// How long it may be.
        limit: usize,
    },
    /// Tables of this kind have no such operation.
    #[error("{operation} is not defined for {kind} table {table}; {instead}")]
    WrongKind {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// Its kind.
        kind: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A part of a table that it doesn't have was asked for.
    #[error("{operation}: table {table} has {parts} parts, and there is none of number {part}")]
    NoPart {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// How many parts it has.
        parts: usize,
        /// The number.
        part: usize,
    },
    /// A batch has a batch in it.
    #[error("batch: request {position} of it is a batch itself; put all requests into one")]
    NestedBatch {
        /// Which request.
        position: usize,
    },
    /// A client has repeated a push so late that nobody knows any more whether it was applied.
    #[error(
        "push {sequence} of client {client:x} is too old to tell whether it was applied: {highest} came after it, and {window} are remembered; read the variable again before you go on"
    )]
    PushExpired {
        /// The client.
        client: u64,
        /// The number of its push.
        sequence: u64,
        /// The highest number that came.
        highest: u64,
        /// How many are remembered.
        window: u64,
    },
    /// A client has been forgotten, and what it repeats may have been applied.
    #[error(
        "push {sequence} of client {client:x} is too old to tell whether it was applied: {limit} clients are remembered, and this one is not any more; read the variable again, over a new connection"
    )]
    ClientForgotten {
        /// The client.
        client: u64,
        /// The number of its push.
        sequence: u64,
        /// How many clients are remembered.
        limit: usize,
    },
    /// More clients push at once than are remembered.
    #[error(
        "push: {limit} clients are remembered, all have pushes under way, and client {client:x} is one more; ask again later"
    )]
    TooManyClients {
        /// The client.
        client: u64,
        /// How many there may be.
        limit: usize,
    },
    /// A change comes from a closure of another job than the one that was begun last.
    #[error(
        "a change of a closure of job {job:x} is not made, since job {present:x} is the one that has begun: the coordinator was started again, and this worker belongs to the one before"
    )]
    OtherJob {
        /// The job that it comes from.
        job: u64,
        /// The one that was begun last.
        present: u64,
    },
    /// A job is so great that none could begin after it.
    #[error(
        "begin_job: job {job:x} is too far after {newest:x}, which has begun last: each job takes the next number of those that servers know"
    )]
    JobTooGreat {
        /// The job.
        job: u64,
        /// The one that was begun last.
        newest: u64,
    },
    /// A change comes from a closure that has ended.
    #[error(
        "a change of closure {closure} is not made, since all closures below {floor} have ended: this worker was replaced, and another one has run the closure"
    )]
    ClosureEnded {
        /// The number of the closure.
        closure: u64,
        /// The number of the first that may not have ended.
        floor: u64,
    },
    /// Too many closures have changed a table while one had not ended.
    #[error(
        "a change of closure {closure} is not made, since {limit} changes of closures are remembered of a table, and those are the ones since closure {oldest}, which has not ended; ask again when it has"
    )]
    TooManyClosures {
        /// The number of the closure.
        closure: u64,
        /// The first of those that are remembered.
        oldest: u64,
        /// How many entries there may be, each for up to 64 changes of a closure.
        limit: usize,
    },
    /// A request is none that can be made once for a closure.
    #[error("{operation} cannot be made for a closure once: only changes of what is in one table can")]
    NotOnce {
        /// What was asked for.
        operation: &'static str,
    },
    /// What was given doesn't fit together.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
    /// A rule was given hyper-parameters that it cannot take.
    #[error(transparent)]
    Rule(#[from] InvalidHyperparameter),
    /// A rule could not be applied.
    #[error("{operation}: table {table}: {source}")]
    Update {
        /// What was being done.
        operation: &'static str,
        /// The table.
        table: String,
        /// What the rule says.
        source: UpdateError,
    },
}
