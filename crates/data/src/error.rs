//! What can go wrong while data is read, changed and cut.

use crate::Cardinality;

/// The result of operations on datasets.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of any type, as user functions return them.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong with a dataset. Every variant says where: a file and line, or the index of an element.
///
/// Indices count from 0 within one pass over the dataset; lines and columns of files count from 1, as editors do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened or read, or its compressed stream is broken.
    #[error("cannot read '{path}': {source}")]
    Io {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// What the operating system or the decoder said.
        source: std::io::Error,
    },
    /// The bytes of a file are not what its format needs there.
    #[error("'{path}', byte {offset}: {what}")]
    Damaged {
        /// The file, or the name given to bytes in memory; within an archive, `archive/member`.
        path: String,
        /// The byte, counted from 0, of the file with its compression taken off.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A column of a file cannot become a tensor.
    #[error("'{path}', column '{column}': {what}")]
    Column {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The column.
        column: String,
        /// What stands in the way: its type, or a row, counted from 0.
        what: String,
    },
    /// A file needs a feature of this crate that is not enabled.
    #[error("'{what}' needs the cargo feature `{feature}` of distribute-data")]
    Feature {
        /// The file, and what in it needs the feature.
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
        /// The file that was to be there.
        path: String,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// An element cannot be written to a file.
    #[error("cannot write element {index} to '{path}': {what}")]
    Unwritable {
        /// The file.
        path: String,
        /// The element, counted from 0 within the pass.
        index: u64,
        /// Why not.
        what: String,
    },
    /// A TFRecord file is damaged, or ends in the middle of a record.
    #[error("'{path}', record {record} at byte {offset}: {what}")]
    Record {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// Where the record begins, in bytes of the file with its compression taken off.
        offset: u64,
        /// The record, counted from 0 within the file.
        record: u64,
        /// What is wrong with it.
        what: String,
    },
    /// A record is no `tf.train.Example`, or its features are not those asked for.
    #[error("{}record {record}{}: {what}", file_of(path), feature_of(feature))]
    Example {
        /// The file, or the name given to bytes in memory, where it is known.
        path: Option<String>,
        /// The record, counted from 0 within the file, or within the records given where no file is known.
        record: u64,
        /// The feature, unless the record is broken before any.
        feature: Option<String>,
        /// What is wrong with it.
        what: String,
    },
    /// A field of a CSV file is not what its column needs, or a row is wider or narrower than the first.
    #[error("'{path}', line {line}, column {column}: found {found}, expected {expected}")]
    Csv {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The line, counted from 1, on which the row starts.
        line: u64,
        /// The column, counted from 1.
        column: usize,
        /// What stood there.
        found: String,
        /// What had to stand there.
        expected: String,
    },
    /// A CSV file has no such column.
    #[error("'{path}' has no column {column}; it has {known}")]
    NoColumn {
        /// The file, or the name given to bytes in memory.
        path: String,
        /// The column asked for.
        column: String,
        /// The columns that there are.
        known: String,
    },
    /// A function given to `try_map`, `try_filter` and the like returned an error.
    #[error("{operation} failed at element {index}: {cause}")]
    Function {
        /// The transformation.
        operation: &'static str,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// What the function said.
        #[source]
        cause: Cause,
    },
    /// The dataset that a function made of an element could not be made, or its pass failed.
    #[error("{operation}: the dataset of element {index} failed: {cause}")]
    Inner {
        /// The transformation.
        operation: &'static str,
        /// The element it was made of, counted from 0 within the pass.
        index: usize,
        /// What the function or the dataset said.
        #[source]
        cause: Cause,
    },
    /// The iterator of a generator returned an error.
    #[error("the generator failed at element {index}: {cause}")]
    Generator {
        /// The element, counted from 0 within the pass.
        index: usize,
        /// What the iterator said.
        #[source]
        cause: Cause,
    },
    /// A function given to the dataset panicked. The panic is caught; the pass over the dataset is over.
    #[error("the function given to {operation} panicked at element {index}: {message}")]
    Panicked {
        /// The transformation or source.
        operation: &'static str,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The panic's message.
        message: String,
    },
    /// An element is not of the Rust type that the dataset's type promises.
    #[error("{operation}: element {index} has another type than the dataset says: {source}")]
    Type {
        /// Who wanted the element.
        operation: &'static str,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// What was needed and what was found.
        source: distribute_tensor::Error,
    },
    /// Elements cannot be put together to a batch: their structures, dtypes or shapes differ.
    #[error(
        "batch {batch} cannot be put together from its {elements} elements: {source}; all elements of a batch need one structure, dtype and shape"
    )]
    Stack {
        /// The batch, counted from 0 within the pass.
        batch: usize,
        /// How many elements it has.
        elements: usize,
        /// How they differ.
        source: distribute_tensor::Error,
    },
    /// Single elements were to be cut over replicas.
    #[error(
        "{what}, so it cannot be cut over replicas: call `.batch(global_batch_size)` on the dataset first"
    )]
    NotBatched {
        /// What was found instead of a batch.
        what: String,
    },
    /// A scalar stands where rows are needed.
    #[error("{operation} needs rows, but {path} is a scalar: it has no axis 0 to cut")]
    Scalar {
        /// What was being done.
        operation: &'static str,
        /// Where in the structure: `value.a[1]`.
        path: String,
    },
    /// Two leaves of one nest have different numbers of rows.
    #[error("{operation} needs equal sizes of axis 0: {first_path} has {first} rows, {path} has {rows}")]
    UnequalRows {
        /// What was being done.
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
    /// A dataset has not the number of elements that it has to have.
    #[error("assert_cardinality: there have to be {expected} elements, but this dataset {found}")]
    Cardinality {
        /// How many there have to be.
        expected: usize,
        /// How many there are, in words.
        found: String,
    },
    /// An element is not what was declared.
    #[error("assert_element_spec: element {index} has to be {expected}, but is {found}")]
    Spec {
        /// The element, counted from 0 within the pass.
        index: usize,
        /// The spec that was declared.
        expected: String,
        /// The element's dtypes and shapes.
        found: String,
    },
    /// An element cannot be made as large as the others of its batch.
    #[error("padded_batch: {path} of element {index} cannot be padded: {why}")]
    Pad {
        /// Where in the element: `value.a[1]`.
        path: String,
        /// The element, counted from 0 within the pass.
        index: usize,
        /// What is in the way.
        why: String,
    },
    /// One of two datasets that have to be equally long ends before the other.
    #[error("zip_equal: the {shorter} dataset ends after {len} elements, the other doesn't ({other})")]
    UnequalZip {
        /// `first` or `second`.
        shorter: &'static str,
        /// Its number of elements.
        len: usize,
        /// How many the other has, as far as the pipeline tells.
        other: Cardinality,
    },
    /// A nest without any leaf has no rows.
    #[error("{operation} needs at least one tensor, but {found} holds none")]
    NoTensor {
        /// What was being done.
        operation: &'static str,
        /// The structure found.
        found: String,
    },
    /// A dataset that had to have elements has none.
    #[error("{operation} needs at least one element, but the dataset is empty")]
    Empty {
        /// What was being done.
        operation: &'static str,
    },
    /// A dataset that had to end never does.
    #[error("{operation} needs a dataset that ends, but this one is repeated forever: call `.take(n)` first")]
    Endless {
        /// What was being done.
        operation: &'static str,
    },
    /// A parameter is outside of its range.
    #[error("{operation}: {parameter} is {found}, but must be {expected}")]
    Parameter {
        /// The transformation.
        operation: &'static str,
        /// Its parameter.
        parameter: &'static str,
        /// The value given.
        found: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// The file of a cache holds elements of another pipeline.
    #[error(
        "'{path}' holds elements of another dataset than this one: {why}; delete it to have it written anew, or give cache_to another path"
    )]
    Cache {
        /// The file.
        path: String,
        /// What differs.
        why: String,
    },
    /// What an operation has to hold at once doesn't fit into memory.
    #[error("{operation}: {elements} elements at once do not fit into memory; ask for fewer")]
    Memory {
        /// The operation.
        operation: &'static str,
        /// How many.
        elements: usize,
    },
    /// A repeated dataset gave nothing, again and again, or nothing that a filter behind it keeps.
    #[error(
        "{operation}: {passes} passes in a row had no element: look at what filters keep, or take an empty dataset out"
    )]
    EmptyPasses {
        /// Which operation waited for one.
        operation: &'static str,
        /// How many passes.
        passes: usize,
    },
    /// A thread of a pass could not be started.
    #[error("cannot start a thread of {operation}: {source}; use fewer threads or raise their limit")]
    Thread {
        /// The transformation.
        operation: &'static str,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A thread of a pass ended without saying why.
    #[error("a thread of {operation} died: {message}")]
    ThreadDied {
        /// The transformation.
        operation: &'static str,
        /// Its panic's message.
        message: String,
    },
    /// The elements of this source cannot be parted by files.
    #[error(
        "{reader} cannot be parted by files over workers: use AutoShardPolicy::Data, or Auto, which finds that out itself"
    )]
    Unshardable {
        /// The source.
        reader: String,
    },
    /// There are fewer files than workers, so that some would have nothing to read.
    #[error(
        "a source has {files} file(s), not enough for {workers} workers: write more files, or use AutoShardPolicy::Data"
    )]
    TooFewFiles {
        /// The files of the source that has the fewest.
        files: usize,
        /// The workers.
        workers: usize,
    },
    /// A dataset with a hint was read without a policy that replaces it.
    #[error(
        "shard_hint says only where to part the dataset: distribute it with AutoShardPolicy::Hint, or call `shard(workers, index)` instead"
    )]
    Hinted,
    /// Workers that each take their pieces of the same batches would see different batches.
    #[error(
        "\"{operation}\" may give another order to each worker, and all take their pieces of the same batches: use an operation that keeps the order, or another AutoShardPolicy than Data"
    )]
    Unordered {
        /// The operation that doesn't give the same once more.
        operation: String,
    },
    /// The function that makes a dataset for each pipeline failed or panicked.
    #[error("the function that makes datasets failed for {context}: {cause}")]
    DatasetFunction {
        /// The pipeline that it was to make.
        context: crate::InputContext,
        /// What the function said.
        #[source]
        cause: Cause,
    },
    /// A replica's piece could not be prepared for it.
    #[error("step {step}: the piece of local replica {replica} cannot be prepared: {cause}")]
    Piece {
        /// The step, counted from 0 within the pass.
        step: u64,
        /// The local replica.
        replica: usize,
        /// What was in the way.
        #[source]
        cause: Cause,
    },
    /// There is no such worker.
    #[error("there is no worker {worker}: there are {workers}, counted from 0")]
    Worker {
        /// The worker asked for.
        worker: usize,
        /// How many there are.
        workers: usize,
    },
    /// A global batch cannot be cut into pieces of one size.
    #[error(
        "the global batch size {global} is not divisible by the {replicas} replicas in sync: make it a multiple of {replicas}"
    )]
    NotDivisible {
        /// The global batch size.
        global: usize,
        /// The replicas of all workers.
        replicas: usize,
    },
    /// Some replicas have data for a last step and others don't, and nothing says what an empty batch looks like.
    #[error(
        "only {present} of {replicas} replicas have data for step {step}, and no empty batch can be made for the others: elements that are no batches have no rows to leave out, and a dataset without elements shows none: call `.batch(n)`, or use UnevenEnds::StopAll or Drop"
    )]
    NoEmptyBatch {
        /// The step, counted from 0 within the pass.
        step: u64,
        /// Replicas with data.
        present: usize,
        /// All replicas.
        replicas: usize,
    },
    /// Of workers that read the same dataset, one is at its end before the others.
    #[error(
        "worker {worker} is at the end of the data at step {step}, and others are not: the workers read different data; give all of them the same files, and functions that give the same for the same element"
    )]
    OtherData {
        /// The step, counted from 0 within the pass.
        step: u64,
        /// The first worker that is at the end.
        worker: usize,
    },
    /// A position is of a pass over another dataset, or not one of ours.
    #[error("the position ({position}) cannot be restored: {why}")]
    Position {
        /// The position.
        position: String,
        /// What doesn't fit.
        why: String,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] distribute_tensor::Error),
}

impl Error {
    /// Returns the error of a record of examples, or of a feature of it, whose file is not known here.
    pub(crate) fn example(record: u64, feature: Option<&str>, what: String) -> Self {
        Error::Example { path: None, record, feature: feature.map(str::to_owned), what }
    }

    /// Returns the error of an example that is so many records after the one that it names.
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
