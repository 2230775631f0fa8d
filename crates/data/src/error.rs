//! The errors of reading, transforming and splitting data.

use crate::Cardinality;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of any type, as user functions return it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// An error while data is read, transformed or split. Most variants contain a file and line, or an element's index.
///
/// Indices are counted from 0 within a pass. Lines and columns of text files are counted from 1, as in editors.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened or read, or its compressed stream is broken.
    #[error("cannot read '{path}': {source}")]
    Io {
        /// The path of the file, or the name that was given to bytes in memory.
        path: String,
        /// The error from the operating system or the decoder.
        source: std::io::Error,
    },
    /// The bytes of a file are invalid in its format.
    #[error("'{path}', byte {offset}: {what}")]
    Damaged {
        /// The path of the file, or the name that was given to bytes in memory; within an archive,
        /// `archive/member`.
        path: String,
        /// The offset of the invalid bytes in the decompressed file.
        offset: u64,
        /// A description of what is wrong.
        what: String,
    },
    /// A column of a file cannot become a tensor.
    #[error("'{path}', column '{column}': {what}")]
    Column {
        /// The path of the file, or the name that was given to bytes in memory.
        path: String,
        /// The name of the column.
        column: String,
        /// The reason. It contains the type of the column, or the index of a row, counted from 0.
        what: String,
    },
    /// A file needs a feature of this crate that is not enabled.
    #[error("'{what}' needs the cargo feature `{feature}` of distribute-data")]
    Feature {
        /// The file, and why it needs the feature.
        what: String,
        /// The name of the feature.
        feature: &'static str,
    },
    /// A pattern of file names matches no file.
    #[error("no file matches '{pattern}'")]
    NoFiles {
        /// The pattern, after the expansion of braces and without the secrets of a URL.
        pattern: String,
    },
    /// A file could not be written.
    #[error("cannot write '{path}': {source}")]
    Write {
        /// The path of the file.
        path: String,
        /// The error from the operating system.
        source: std::io::Error,
    },
    /// An element cannot be written to a file.
    #[error("cannot write element {index} to '{path}': {what}")]
    Unwritable {
        /// The path of the file.
        path: String,
        /// The index of the element in the pass, from 0.
        index: u64,
        /// The reason for the failure.
        what: String,
    },
    /// A TFRecord file is damaged, or ends in the middle of a record.
    #[error("'{path}', record {record} at byte {offset}: {what}")]
    Record {
        /// The path of the file, or the name that was given to bytes in memory.
        path: String,
        /// The offset of the record in the decompressed file, in bytes.
        offset: u64,
        /// The index of the record in the file, from 0.
        record: u64,
        /// A description of what is wrong.
        what: String,
    },
    /// A record is not a valid `tf.train.Example`, or its features do not match the requested ones.
    #[error("{}record {record}{}: {what}", between("'", path, "', "), between(", feature '", feature, "'"))]
    Example {
        /// The path of the file, or the name that was given to bytes in memory; `None` if it is not known.
        path: Option<String>,
        /// The index of the record in the file, from 0. If the file is not known, it is the index among the given
        /// records.
        record: u64,
        /// The name of the feature; `None` if the error is not about a single feature.
        feature: Option<String>,
        /// A description of what is wrong.
        what: String,
    },
    /// A field of a CSV file does not have its column's type, or a row has more or fewer fields than the first row. It
    /// is also the error for a quote that is never closed, and for a header that differs from that of the first file or
    /// repeats a requested name.
    #[error("'{path}', line {line}, column {column}: found {found}, expected {expected}")]
    Csv {
        /// The path of the file, or the name that was given to bytes in memory.
        path: String,
        /// The line on which the row begins, counted from 1.
        line: u64,
        /// The number of the column, counted from 1.
        column: usize,
        /// The text of the field, or a description of the row.
        found: String,
        /// A description of the expected contents.
        expected: String,
    },
    /// A file does not contain the requested column.
    #[error("'{path}' has no column {column}; it has {known}")]
    NoColumn {
        /// The path of the file, or the name that was given to bytes in memory.
        path: String,
        /// The requested column.
        column: String,
        /// The columns of the file: their names or indices.
        known: String,
    },
    /// A user function that was passed to `try_map`, `try_filter` or a similar method returned an error.
    #[error("{operation} failed at element {index}: {cause}")]
    Function {
        /// The operation to which the function was passed.
        operation: &'static str,
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The error that the function returned.
        #[source]
        cause: Cause,
    },
    /// A user function failed to create a dataset from an element, or the pass over that dataset failed.
    #[error("{operation}: the dataset of element {index} failed: {cause}")]
    Inner {
        /// The operation to which the function was passed.
        operation: &'static str,
        /// The index of the element from which the dataset was created, from 0 in the pass.
        index: usize,
        /// The error of the function or of the dataset.
        #[source]
        cause: Cause,
    },
    /// The iterator of a generator returned an error.
    #[error("the generator failed at element {index}: {cause}")]
    Generator {
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The error that the iterator returned.
        #[source]
        cause: Cause,
    },
    /// A user function panicked. The panic is caught, and the pass over the dataset ends.
    #[error("the function given to {operation} panicked at element {index}: {message}")]
    Panicked {
        /// The operation or source to which the function was passed.
        operation: &'static str,
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The message of the panic.
        message: String,
    },
    /// A pass has waited too long for another thread that reads a generator's first element to determine the spec.
    #[error(
        "a generator has returned no first element in {waited:?}: declare its spec with `assert_element_spec`"
    )]
    GeneratorBusy {
        /// The time that the pass has waited.
        waited: std::time::Duration,
    },
    /// An element cannot be converted to the Rust type of the dataset's elements.
    #[error("{operation}: element {index} has another type than the dataset says: {source}")]
    Type {
        /// The operation that requested the element.
        operation: &'static str,
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The error of the conversion, with the expected and the actual type.
        source: distribute_tensor::Error,
    },
    /// Elements cannot be stacked into a batch, because their structures, dtypes or shapes differ.
    #[error(
        "batch {batch} cannot be assembled from its {elements} elements: {source}; all elements of a batch \
         need the same structure, dtype and shape"
    )]
    Stack {
        /// The index of the batch in the pass, from 0.
        batch: usize,
        /// The number of elements in the batch.
        elements: usize,
        /// The error that describes the difference.
        source: distribute_tensor::Error,
    },
    /// The input to be split over replicas is not batched.
    #[error(
        "{what}, so it cannot be split over replicas: call `.batch(global_batch_size)` on the dataset first"
    )]
    NotBatched {
        /// A description of the input that is not batched.
        what: String,
    },
    /// A leaf is a scalar, although rows were expected.
    #[error("{operation} needs rows, but {path} is a scalar: it has no axis 0 to split")]
    Scalar {
        /// The operation that returned the error.
        operation: &'static str,
        /// The path of the scalar in the structure, such as `value.a[1]`.
        path: String,
    },
    /// Two leaves of a nest have different numbers of rows.
    #[error("{operation} needs equal sizes of axis 0: {first_path} has {first} rows, {path} has {rows}")]
    UnequalRows {
        /// The operation that returned the error.
        operation: &'static str,
        /// The path of the first leaf.
        first_path: String,
        /// The number of rows of the first leaf.
        first: usize,
        /// The path of the leaf that differs.
        path: String,
        /// The number of rows of the leaf at `path`.
        rows: usize,
    },
    /// A dataset does not have the asserted number of elements.
    #[error("assert_cardinality: there must be {expected} elements, but this dataset {found}")]
    Cardinality {
        /// The asserted number of elements.
        expected: usize,
        /// A phrase about the actual number.
        found: String,
    },
    /// An element does not have the declared spec.
    #[error("assert_element_spec: element {index} must be {expected}, but is {found}")]
    Spec {
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The declared spec.
        expected: String,
        /// The dtypes and shapes of the element.
        found: String,
    },
    /// An element cannot be padded to the size of the other elements in its batch.
    #[error("{operation}: {path} of element {index} cannot be padded: {why}")]
    Pad {
        /// The operation that pads elements.
        operation: &'static str,
        /// The path of the tensor in the element, such as `value.a[1]`.
        path: String,
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The reason for the failure.
        why: String,
    },
    /// A choice of [`Dataset::choose_from_datasets`](crate::Dataset::choose_from_datasets) is not the index of a
    /// dataset.
    #[error(
        "choose_from_datasets: choice {index} is dataset {found}, but there are {datasets}, counted from 0"
    )]
    Choice {
        /// The index of the choice in the pass, from 0.
        index: usize,
        /// The number that was chosen.
        found: i64,
        /// The number of datasets.
        datasets: usize,
    },
    /// A sequence is longer than a packed row.
    #[error(
        "pack_sequences: element {index} has {rows} rows, more than the {length} of a packed row: use \
         Packing::split_long, or shorten it with `map`"
    )]
    Sequence {
        /// The index of the element in the pass, from 0.
        index: usize,
        /// The number of rows of the element.
        rows: usize,
        /// The number of rows of a packed row.
        length: usize,
    },
    /// One of two datasets that must have the same length ends before the other.
    #[error("zip_equal: the {shorter} dataset ends after {len} elements, the other doesn't ({other})")]
    UnequalZip {
        /// The shorter dataset: `first` or `second`.
        shorter: &'static str,
        /// The number of elements of the shorter dataset.
        len: usize,
        /// The number of elements of the other dataset, as far as the pipeline determines it.
        other: Cardinality,
    },
    /// A nest has no leaves, and therefore no rows.
    #[error("{operation} needs at least one tensor, but {found} has none")]
    NoTensor {
        /// The operation that returned the error.
        operation: &'static str,
        /// A description of the nest's structure.
        found: String,
    },
    /// The dataset has no elements, but the operation needs at least one.
    #[error("{operation} needs at least one element, but the dataset is empty")]
    Empty {
        /// The operation that returned the error.
        operation: &'static str,
    },
    /// The dataset is infinite, but the operation needs a finite one.
    #[error("{operation} needs a dataset that ends, but this one is repeated forever: call `.take(n)` first")]
    Endless {
        /// The operation that returned the error.
        operation: &'static str,
    },
    /// Files cannot be dealt: the pipeline or the workers forbid it, or the methods of a pass were called out of order.
    #[error("the files cannot be dealt to the workers: {why}")]
    NotDealt {
        /// The reason, and the advice.
        why: String,
    },
    /// A parameter is out of range.
    #[error("{operation}: {parameter} is {found}, but must be {expected}")]
    Parameter {
        /// The operation to which the parameter was passed.
        operation: &'static str,
        /// The name of the parameter.
        parameter: &'static str,
        /// The value that was passed.
        found: String,
        /// The allowed range.
        expected: &'static str,
    },
    /// A cache file contains elements of a different pipeline, or is not a cache file of this version.
    #[error(
        "'{path}' has elements of another dataset: {why}; delete it to write it again, or pass another \
         path to cache_to"
    )]
    Cache {
        /// The path of the cache file.
        path: String,
        /// The reason for the rejection.
        why: String,
    },
    /// The elements that an operation keeps at the same time do not fit into memory.
    #[error("{operation}: {elements} elements at once do not fit into memory; request fewer")]
    Memory {
        /// The operation that returned the error.
        operation: &'static str,
        /// The number of elements that are kept at the same time.
        elements: usize,
    },
    /// Several consecutive passes over a repeated dataset had no elements, or later operations returned none for them.
    #[error("{operation}: {passes} passes in a row had no element: check filters, remove empty datasets")]
    EmptyPasses {
        /// The operation that waited for an element.
        operation: &'static str,
        /// The number of consecutive passes without elements.
        passes: usize,
    },
    /// A thread of a pass could not be started.
    #[error("cannot start a thread of {operation}: {source}; use fewer threads or raise their limit")]
    Thread {
        /// The operation that needs the thread.
        operation: &'static str,
        /// The error from the operating system.
        source: std::io::Error,
    },
    /// A thread of a pass panicked.
    #[error("a thread of {operation} panicked: {message}")]
    ThreadDied {
        /// The operation that started the thread.
        operation: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// A source cannot be sharded by files.
    #[error(
        "{reader} cannot be sharded by files over workers: use AutoShardPolicy::Data, or Auto, which \
         detects this"
    )]
    Unshardable {
        /// A description of the source.
        reader: String,
    },
    /// A source has fewer files than there are workers, so some workers would have nothing to read.
    #[error(
        "a source has {files} file(s), not enough for {workers} workers: write more files, or use AutoShardPolicy::Data"
    )]
    TooFewFiles {
        /// The number of files of the source with the fewest files.
        files: usize,
        /// The number of workers.
        workers: usize,
    },
    /// A dataset with a shard hint was read without the policy that uses the hint.
    #[error(
        "shard_hint only marks the position at which to shard the dataset: distribute it with \
         AutoShardPolicy::Hint, or call `shard(workers, index)` instead"
    )]
    Hinted,
    /// Each worker takes its own rows of the same batches, but the workers could see different batches.
    #[error(
        "\"{operation}\" may have another order on each worker, but all take their rows of the same \
         batches: use an operation that keeps the order, or another AutoShardPolicy than Data"
    )]
    Unordered {
        /// The operation whose order may differ between passes.
        operation: String,
    },
    /// The function that creates a dataset for each input pipeline failed or panicked.
    #[error("the function that makes datasets failed for {context}: {cause}")]
    DatasetFunction {
        /// The context with which the function was called.
        context: crate::InputContext,
        /// The error that the function returned, or its panic as text.
        #[source]
        cause: Cause,
    },
    /// The function that prepares per-replica batches failed or panicked.
    #[error("step {step}: the batch of local replica {replica} cannot be prepared: {cause}")]
    Piece {
        /// The index of the step in the pass, from 0.
        step: u64,
        /// The index of the local replica.
        replica: usize,
        /// The error that the function returned, or its panic as text.
        #[source]
        cause: Cause,
    },
    /// The index of a worker is not less than the number of workers.
    #[error("there is no worker {worker}: there are {workers}, counted from 0")]
    Worker {
        /// The index of the requested worker.
        worker: usize,
        /// The number of workers.
        workers: usize,
    },
    /// A global batch size cannot be divided equally over the replicas.
    #[error(
        "the global batch size {global} is not divisible by the {replicas} replicas in sync: make it a multiple of {replicas}"
    )]
    NotDivisible {
        /// The global batch size.
        global: usize,
        /// The total number of replicas of all workers.
        replicas: usize,
    },
    /// Some replicas have data for a step and others do not, and no empty batch can be created for the latter.
    #[error(
        "only {present} of {replicas} replicas have data for step {step}, and no empty batch can be made \
         for the others: elements that are not batches have no rows to omit, and a dataset without elements \
         has no example: call `.batch(n)`, or use UnevenEnds::StopAll or Drop"
    )]
    NoEmptyBatch {
        /// The index of the step in the pass, from 0.
        step: u64,
        /// The number of replicas that have data.
        present: usize,
        /// The total number of replicas.
        replicas: usize,
    },
    /// One of several workers that read the same dataset reached its end before the others, or dealt other files.
    #[error(
        "at step {step}, worker {worker} {what}: the workers read different data; use the same files and \
         the same checkpoint on all of them, and functions that return the same for the same element"
    )]
    OtherData {
        /// The index of the step in the pass, from 0.
        step: u64,
        /// The first worker that differs.
        worker: usize,
        /// The difference, as text.
        what: &'static str,
    },
    /// A position belongs to a pass over a different dataset, or is invalid.
    #[error("the position ({position}) cannot be restored: {why}")]
    Position {
        /// The position, as text.
        position: String,
        /// A description of the mismatch.
        why: String,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
}

/// Returns `text` between `before` and `after`; an empty text if `text` is `None`.
fn between(before: &str, text: &Option<String>, after: &str) -> String {
    text.as_ref().map_or(String::new(), |text| format!("{before}{text}{after}"))
}

/// Checks that a parameter is at least 1. Otherwise returns [`Error::Parameter`].
pub(crate) fn at_least_one(operation: &'static str, parameter: &'static str, value: usize) -> Result<()> {
    let refused = || Error::Parameter { operation, parameter, found: "0".into(), expected: "at least 1" };
    if value > 0 { Ok(()) } else { Err(refused()) }
}
