//! The errors of reading, transforming and splitting data.

use crate::Cardinality;

/// The result of operations on datasets.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of any type, as returned by user functions.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error of a dataset. Every variant has a position: a file and line, or the index of an element.
///
/// Indices count from 0 within one pass over the dataset. Lines and columns of files count from 1, as in
/// editors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened or read, or its compressed stream is broken.
    #[error("cannot read '{path}': {source}")]
    Io {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The error of the operating system or the decoder.
        source: std::io::Error,
    },
    /// The bytes of a file don't match its format.
    #[error("'{path}', byte {offset}: {what}")]
    Damaged {
        /// The file, or the name given to bytes in memory; within an archive, `archive/member`.
        path: String,
        /// The offset of the byte, counted from 0 in the decompressed file.
        offset: u64,
        /// The defect.
        what: String,
    },
    /// A column of a file cannot become a tensor.
    #[error("'{path}', column '{column}': {what}")]
    Column {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The column.
        column: String,
        /// The reason: its type, or a row, counted from 0.
        what: String,
    },
    /// A file needs a feature of this crate that is not enabled.
    #[error("'{what}' needs the cargo feature `{feature}` of distribute-data")]
    Feature {
        /// The file, and its part that needs the feature.
        what: String,
        /// The feature.
        feature: &'static str,
    },
    /// A pattern of file names matches no file.
    #[error("no file matches '{pattern}'")]
    NoFiles {
        /// The pattern.
        pattern: String,
    },
    /// A file could not be written.
    #[error("cannot write '{path}': {source}")]
    Write {
        /// The file.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// An element cannot be written to a file.
    #[error("cannot write element {index} to '{path}': {what}")]
    Unwritable {
        /// The file.
        path: String,
        /// The element, counted from 0 within the pass.
        index: u64,
        /// The reason.
        what: String,
    },
    /// A TFRecord file is damaged, or ends in the middle of a record.
    #[error("'{path}', record {record} at byte {offset}: {what}")]
    Record {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The offset of the record, in bytes of the decompressed file.
        offset: u64,
        /// The record, counted from 0 within the file.
        record: u64,
        /// The defect.
        what: String,
    },
    /// A record is no `tf.train.Example`, or its features are not the requested ones.
    #[error("{}record {record}{}: {what}", file_of(path), feature_of(feature))]
    Example {
        /// The file, or the name given to bytes in memory, if it is known.
        path: Option<String>,
        /// The record, counted from 0 within the file, or within the given records if no file is known.
        record: u64,
        /// The feature. `None` if the record is broken before its first feature.
        feature: Option<String>,
        /// The defect.
        what: String,
    },
    /// A field of a CSV file doesn't fit its column, or a row is wider or narrower than the first.
    #[error("'{path}', line {line}, column {column}: found {found}, expected {expected}")]
    Csv {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The line, counted from 1, on which the row starts.
        line: u64,
        /// The column, counted from 1.
        column: usize,
        /// The text of the field.
        found: String,
        /// The expected content.
        expected: String,
    },
    /// A CSV file has no such column.
    #[error("'{path}' has no column {column}; it has {known}")]
    NoColumn {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The column asked for.
        column: String,
        /// The columns of the file.
        known: String,
    },
    /// A function given to `try_map`, `try_filter` and the like returned an error.
    #[error("{operation} failed at element {index}: {cause}")]
    Function {
        /// The transformation.
        operation: &'static str,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The function's error.
        #[source]
        cause: Cause,
    },
    /// A function failed to make a dataset of an element, or the pass of that dataset failed.
    #[error("{operation}: the dataset of element {index} failed: {cause}")]
    Inner {
        /// The transformation.
        operation: &'static str,
        /// The element that the dataset was made of, counted from 0 within the pass.
        index: usize,
        /// The error of the function or the dataset.
        #[source]
        cause: Cause,
    },
    /// The iterator of a generator returned an error.
    #[error("the generator failed at element {index}: {cause}")]
    Generator {
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The iterator's error.
        #[source]
        cause: Cause,
    },
    /// A function given to the dataset panicked. The panic is caught, and the pass over the dataset ends.
    #[error("the function given to {operation} panicked at element {index}: {message}")]
    Panicked {
        /// The transformation or source.
        operation: &'static str,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The panic's message.
        message: String,
    },
    /// An element is not of the Rust type of the dataset.
    #[error("{operation}: element {index} has another type than the dataset says: {source}")]
    Type {
        /// The operation that needed the element.
        operation: &'static str,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The expected and the actual type.
        source: distribute_tensor::Error,
    },
    /// Elements cannot be stacked into a batch: their structures, dtypes or shapes differ.
    #[error(
        "batch {batch} cannot be put together from its {elements} elements: {source}; all elements of a batch need one structure, dtype and shape"
    )]
    Stack {
        /// The batch, counted from 0 within the pass.
        batch: usize,
        /// The number of its elements.
        elements: usize,
        /// The difference.
        source: distribute_tensor::Error,
    },
    /// Single elements were to be split over replicas.
    #[error(
        "{what}, so it cannot be cut over replicas: call `.batch(global_batch_size)` on the dataset first"
    )]
    NotBatched {
        /// The input that is not a batch.
        what: String,
    },
    /// A scalar was given instead of rows.
    #[error("{operation} needs rows, but {path} is a scalar: it has no axis 0 to cut")]
    Scalar {
        /// The operation.
        operation: &'static str,
        /// The path of the scalar in the structure: `value.a[1]`.
        path: String,
    },
    /// Two leaves of one nest have different numbers of rows.
    #[error("{operation} needs equal sizes of axis 0: {first_path} has {first} rows, {path} has {rows}")]
    UnequalRows {
        /// The operation.
        operation: &'static str,
        /// The first leaf.
        first_path: String,
        /// Its number of rows.
        first: usize,
        /// The leaf that differs.
        path: String,
        /// Its number of rows.
        rows: usize,
    },
    /// A dataset doesn't have the asserted number of elements.
    #[error("assert_cardinality: there have to be {expected} elements, but this dataset {found}")]
    Cardinality {
        /// The asserted number.
        expected: usize,
        /// The actual number, in words.
        found: String,
    },
    /// An element doesn't have the declared spec.
    #[error("assert_element_spec: element {index} has to be {expected}, but is {found}")]
    Spec {
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The declared spec.
        expected: String,
        /// The element's dtypes and shapes.
        found: String,
    },
    /// An element cannot be padded to the size of the others in its batch.
    #[error("padded_batch: {path} of element {index} cannot be padded: {why}")]
    Pad {
        /// The path of the tensor in the element: `value.a[1]`.
        path: String,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The reason.
        why: String,
    },
    /// One of two datasets that must be equally long ends before the other.
    #[error("zip_equal: the {shorter} dataset ends after {len} elements, the other doesn't ({other})")]
    UnequalZip {
        /// `first` or `second`.
        shorter: &'static str,
        /// Its number of elements.
        len: usize,
        /// The number of elements of the other, if the pipeline determines it.
        other: Cardinality,
    },
    /// A nest without any leaf has no rows.
    #[error("{operation} needs at least one tensor, but {found} holds none")]
    NoTensor {
        /// The operation.
        operation: &'static str,
        /// The structure found.
        found: String,
    },
    /// A dataset has no elements, but the operation needs at least one.
    #[error("{operation} needs at least one element, but the dataset is empty")]
    Empty {
        /// The operation.
        operation: &'static str,
    },
    /// A dataset never ends, but the operation needs one that does.
    #[error("{operation} needs a dataset that ends, but this one is repeated forever: call `.take(n)` first")]
    Endless {
        /// The operation.
        operation: &'static str,
    },
    /// A parameter is out of range.
    #[error("{operation}: {parameter} is {found}, but must be {expected}")]
    Parameter {
        /// The transformation.
        operation: &'static str,
        /// Its parameter.
        parameter: &'static str,
        /// The value given.
        found: String,
        /// The allowed range.
        expected: &'static str,
    },
    /// The file of a cache holds elements of another pipeline.
    #[error(
        "'{path}' holds elements of another dataset than this one: {why}; delete it to have it written anew, or give cache_to another path"
    )]
    Cache {
        /// The file.
        path: String,
        /// The difference.
        why: String,
    },
    /// The elements that an operation holds at once don't fit into memory.
    #[error("{operation}: {elements} elements at once do not fit into memory; ask for fewer")]
    Memory {
        /// The operation.
        operation: &'static str,
        /// The number of elements.
        elements: usize,
    },
    /// A repeated dataset had no element in several passes in a row, or none that the filters after it keep.
    #[error(
        "{operation}: {passes} passes in a row had no element: look at what filters keep, or take an empty dataset out"
    )]
    EmptyPasses {
        /// The operation that waited for an element.
        operation: &'static str,
        /// The number of passes.
        passes: usize,
    },
    /// A thread of a pass could not be started.
    #[error("cannot start a thread of {operation}: {source}; use fewer threads or raise their limit")]
    Thread {
        /// The transformation.
        operation: &'static str,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A thread of a pass died.
    #[error("a thread of {operation} died: {message}")]
    ThreadDied {
        /// The transformation.
        operation: &'static str,
        /// The message of its panic.
        message: String,
    },
    /// The elements of this source cannot be sharded by files.
    #[error(
        "{reader} cannot be parted by files over workers: use AutoShardPolicy::Data, or Auto, which finds that out itself"
    )]
    Unshardable {
        /// The source.
        reader: String,
    },
    /// There are fewer files than workers, so some workers would have nothing to read.
    #[error(
        "a source has {files} file(s), not enough for {workers} workers: write more files, or use AutoShardPolicy::Data"
    )]
    TooFewFiles {
        /// The number of files of the source that has the fewest.
        files: usize,
        /// The number of workers.
        workers: usize,
    },
    /// A dataset with a shard hint was read without a policy that replaces the hint.
    #[error(
        "shard_hint says only where to part the dataset: distribute it with AutoShardPolicy::Hint, or call `shard(workers, index)` instead"
    )]
    Hinted,
    /// Workers that each take their rows of the same batches would see different batches.
    #[error(
        "\"{operation}\" may give another order to each worker, and all take their pieces of the same batches: use an operation that keeps the order, or another AutoShardPolicy than Data"
    )]
    Unordered {
        /// The operation whose order differs between passes.
        operation: String,
    },
    /// The function that makes a dataset for each pipeline failed or panicked.
    #[error("the function that makes datasets failed for {context}: {cause}")]
    DatasetFunction {
        /// The pipeline that it was to make.
        context: crate::InputContext,
        /// The function's error.
        #[source]
        cause: Cause,
    },
    /// The function that prepares per-replica batches failed.
    #[error("step {step}: the piece of local replica {replica} cannot be prepared: {cause}")]
    Piece {
        /// The step, counted from 0 within the pass.
        step: u64,
        /// The local replica.
        replica: usize,
        /// The function's error.
        #[source]
        cause: Cause,
    },
    /// There is no such worker.
    #[error("there is no worker {worker}: there are {workers}, counted from 0")]
    Worker {
        /// The worker asked for.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
    /// A global batch cannot be split into equal per-replica batches.
    #[error(
        "the global batch size {global} is not divisible by the {replicas} replicas in sync: make it a multiple of {replicas}"
    )]
    NotDivisible {
        /// The global batch size.
        global: usize,
        /// The number of replicas of all workers.
        replicas: usize,
    },
    /// Some replicas have data for a last step and others don't, and the shape of an empty batch is unknown.
    #[error(
        "only {present} of {replicas} replicas have data for step {step}, and no empty batch can be made for the others: elements that are no batches have no rows to leave out, and a dataset without elements shows none: call `.batch(n)`, or use UnevenEnds::StopAll or Drop"
    )]
    NoEmptyBatch {
        /// The step, counted from 0 within the pass.
        step: u64,
        /// The number of replicas with data.
        present: usize,
        /// The number of all replicas.
        replicas: usize,
    },
    /// One of several workers that read the same dataset reaches its end before the others.
    #[error(
        "worker {worker} is at the end of the data at step {step}, and others are not: the workers read different data; give all of them the same files, and functions that give the same for the same element"
    )]
    OtherData {
        /// The step, counted from 0 within the pass.
        step: u64,
        /// The first worker that reached the end.
        worker: usize,
    },
    /// A position belongs to a pass over another dataset, or is invalid.
    #[error("the position ({position}) cannot be restored: {why}")]
    Position {
        /// The position.
        position: String,
        /// The mismatch.
        why: String,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
}

impl Error {
    /// Returns the error of a record of examples, or of one of its features, without a file.
    pub(crate) fn example(record: u64, feature: Option<&str>, what: String) -> Self {
        Error::Example { path: None, record, feature: feature.map(str::to_owned), what }
    }

    /// Returns the error with its record moved on by `after` records.
    pub(crate) fn at_record(self, after: u64) -> Self {
        match self {
            Error::Example { path, record, feature, what } => {
                Error::Example { path, record: record.saturating_add(after), feature, what }
            }
            other => other,
        }
    }
}

fn file_of(path: &Option<String>) -> String {
    path.as_ref().map_or(String::new(), |path| format!("'{path}', "))
}

fn feature_of(feature: &Option<String>) -> String {
    feature.as_ref().map_or(String::new(), |feature| format!(", feature '{feature}'"))
}

/// Returns the error for a parameter that is 0.
pub(crate) fn at_least_one(operation: &'static str, parameter: &'static str, value: usize) -> Result<()> {
    match value {
        0 => Err(Error::Parameter { operation, parameter, found: "0".into(), expected: "at least 1" }),
        _ => Ok(()),
    }
}
