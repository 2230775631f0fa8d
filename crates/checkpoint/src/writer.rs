//! The writer of checkpoints. It collects tensors and metadata, and assigns them to files.

use crate::error::show;
use crate::index::{Entry, Index, SliceEntry};
use crate::live::{Live, LiveTensors, SourceError};
use crate::parts::OwnRows;
use crate::plan::{RowRange, Slice, plan};
use crate::rows::Rows;
use crate::shard::PendingTensor;
use crate::{Error, Metadata, Result, Value, encoding};
use distribute_tensor::{DType, HostTensor};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;

/// A collection of named tensors and metadata that is to be saved. Tensors are shared, not copied.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    tensors: BTreeMap<String, Tensor>,
    metadata: BTreeMap<String, Value>,
    /// The rows that this process writes to a checkpoint of several processes.
    pub(crate) own: BTreeMap<String, Vec<OwnRows>>,
    /// Whether the checkpoint is saved before the saved state changes.
    saved_at_once: bool,
    /// Whether several processes write the checkpoint.
    pub(crate) in_parts: bool,
}

#[derive(Clone, Debug)]
struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    /// The slices by the index of their first row. They do not overlap. A scalar is one slice.
    slices: BTreeMap<usize, Rows>,
}

impl Writer {
    /// Creates an empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Declares that the caller saves the checkpoint, or begins to save it
    /// [in the background](crate::CheckpointManager::save_async), before the saved state changes. Components may then
    /// add tensors whose rows are [read during the save](Self::insert_read), and [live](Self::insert_live) ones.
    pub fn saved_at_once(self) -> Self {
        Self { saved_at_once: true, ..self }
    }

    /// Returns `true` if the caller saves the checkpoint before the saved state changes; see
    /// [`saved_at_once`](Self::saved_at_once).
    pub fn is_saved_at_once(&self) -> bool {
        self.saved_at_once
    }

    /// Returns `true` if rows are [read during the save](Self::insert_read).
    pub fn reads_rows(&self) -> bool {
        let slices = self.tensors.values().flat_map(|tensor| tensor.slices.values());
        slices.into_iter().any(|rows| matches!(rows, Rows::Read { .. }))
    }

    /// Adds a complete tensor. `name` may be any text.
    ///
    /// # Errors
    /// - [`Error::Entry`]: there is already a tensor named `name`.
    pub fn insert(&mut self, name: impl Into<String>, tensor: HostTensor) -> Result<()> {
        self.insert_rows("insert", name.into(), Rows::Memory(tensor))
    }

    /// Adds a complete tensor whose rows are read while the checkpoint is written, so that they are never all in
    /// memory. `read` returns the requested range of rows. Each save calls it for consecutive ranges of about 8 MiB.
    ///
    /// ```
    /// # use distribute_checkpoint::{Reader, Writer};
    /// use distribute_tensor::{DType, HostTensor};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("saved");
    /// let mut writer = Writer::new();
    /// let row = |row: usize| [row as f32, -(row as f32)];
    /// writer.insert_read("table", DType::F32, [1_000, 2], move |rows| {
    ///     let count = rows.len();
    ///     Ok(HostTensor::new(rows.flat_map(row).collect::<Vec<_>>(), [count, 2])?)
    /// })?;
    /// writer.save(&path, 1)?;
    /// assert_eq!(Reader::open(&path)?.rows("table", 7..8)?.to_vec::<f32>()?, [7., -7.]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Entry`]: there is already a tensor named `name`; or it is a scalar or contains strings, which cannot
    ///   be read in parts; or its size in bytes exceeds any memory.
    ///
    /// If `read` fails or returns other rows, the save returns [`Error::Source`].
    pub fn insert_read<F>(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        read: F,
    ) -> Result<()>
    where
        F: Fn(Range<usize>) -> Result<HostTensor, SourceError> + Send + Sync + 'static,
    {
        const OPERATION: &str = "insert_read";
        let (name, dims) = (name.into(), shape.into());
        if dims.is_empty() {
            let reason = format!("rows of {} cannot be read in parts; use insert", show(dtype, &dims));
            return Err(Error::entry(OPERATION, &name, reason));
        }
        require_fixed_size(OPERATION, &name, dtype, &dims)?;
        self.insert_rows(OPERATION, name, Rows::Read { dtype, dims, read: Arc::new(read) })
    }

    /// Adds a complete tensor of the program's state, which is not copied yet: the tensor `index` of `live`. A
    /// [save](Self::save) copies the tensor when it is written. A [save in the
    /// background](crate::CheckpointManager::save_async) holds all such tensors before it returns, and copies them
    /// while the program continues.
    ///
    /// # Errors
    /// - [`Error::Entry`]: there is already a tensor named `name`; or it contains strings; or its size in bytes exceeds
    ///   any memory.
    ///
    /// If the tensor cannot be copied, or has another dtype or shape, the save returns [`Error::Source`].
    pub fn insert_live(
        &mut self,
        name: impl Into<String>,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
        live: &Arc<dyn LiveTensors>,
        index: usize,
    ) -> Result<()> {
        const OPERATION: &str = "insert_live";
        let (name, dims) = (name.into(), shape.into());
        require_fixed_size(OPERATION, &name, dtype, &dims)?;
        let live = Live { tensors: live.clone(), index };
        self.insert_rows(OPERATION, name, Rows::Live { dtype, dims, live })
    }

    /// Returns the rows that have not been copied, with the names of their tensors, in the order of names.
    pub(crate) fn live_rows(&mut self) -> impl Iterator<Item = (&String, &mut Rows)> {
        let all = self.tensors.iter_mut();
        let all = all.flat_map(|(name, tensor)| tensor.slices.values_mut().map(move |rows| (name, rows)));
        all.filter(|(_, rows)| rows.live().is_some())
    }

    /// Returns whether there is a complete tensor of the given name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn insert_rows(&mut self, operation: &'static str, name: String, rows: Rows) -> Result<()> {
        if self.contains(&name) || self.own.contains_key(&name) {
            return Err(Error::entry(operation, &name, "a tensor of this name exists already"));
        }
        let (dtype, shape) = (rows.dtype(), rows.dims().to_vec());
        self.tensors.insert(name, Tensor { dtype, shape, slices: BTreeMap::from([(0, rows)]) });
        Ok(())
    }

    /// Adds `rows`, a slice of the tensor `name` that begins at row `first_row`. `full_shape` is the shape of the
    /// complete tensor. Slices may be added in any order.
    ///
    /// # Errors
    /// - [`Error::Entry`]: the tensor or `rows` is a scalar, the rows do not fit into the shape or overlap rows that
    ///   were added before, or their dtype or full shape differs from earlier slices.
    pub fn insert_slice(
        &mut self,
        name: impl Into<String>,
        full_shape: impl Into<Vec<usize>>,
        first_row: usize,
        rows: HostTensor,
    ) -> Result<()> {
        const OPERATION: &str = "insert_slice";
        let (name, shape) = (name.into(), full_shape.into());
        let (Some((total, row)), Some((count, found))) = (shape.split_first(), rows.dims().split_first())
        else {
            return Err(Error::entry(OPERATION, &name, "a scalar has no rows; use insert"));
        };
        if row != found || first_row.checked_add(*count).is_none_or(|end| end > *total) {
            let reason =
                format!("{} from row {first_row} on are not rows of shape {shape:?}", rows.describe());
            return Err(Error::entry(OPERATION, &name, reason));
        }
        if let Some(tensor) = self.tensors.get(&name) {
            if (tensor.dtype, &tensor.shape) != (rows.dtype(), &shape) {
                let (before, now) = (show(tensor.dtype, &tensor.shape), show(rows.dtype(), &shape));
                return Err(Error::entry(
                    OPERATION,
                    &name,
                    format!("this slice is {now}, but the previous ones are {before}"),
                ));
            }
            // Slices do not overlap, so only the last one that begins before the end can overlap this one.
            let before = tensor.slices.range(..first_row + *count).next_back();
            let reaches = |start: usize, there: &Rows| *count > 0 && start + there.dims()[0] > first_row;
            if let Some((start, there)) = before.filter(|(start, there)| reaches(**start, there)) {
                let there = *start..*start + there.dims()[0];
                let reason = format!("rows {first_row}..{} overlap rows {there:?}", first_row + count);
                return Err(Error::entry(OPERATION, &name, reason));
            }
        }
        let dtype = rows.dtype();
        let tensor =
            self.tensors.entry(name).or_insert_with(|| Tensor { dtype, shape, slices: BTreeMap::new() });
        // Empty slices are kept only if the tensor is empty.
        if rows.dims()[0] > 0 || tensor.slices.is_empty() && tensor.shape[0] == 0 {
            tensor.slices.insert(first_row, Rows::Memory(rows));
        }
        Ok(())
    }

    /// Sets the metadata value for `key`, such as the step, the seed or a hyper-parameter.
    ///
    /// NaN and infinities, which JSON does not support, are stored as text;
    /// [`Reader::number`](crate::Reader::number) reads them. A [`Value`] cannot contain such numbers:
    /// `json!(f64::NAN)` is null.
    pub fn metadata(&mut self, key: impl Into<String>, value: impl Metadata) {
        self.metadata.insert(key.into(), value.into_value());
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Assigns the rows to at most `shards` files. Returns an error if rows are missing, if `shards` is 0, or if there
    /// are rows that each process must write itself.
    pub(crate) fn layout(&self, shards: usize) -> Result<Layout<'_>> {
        if let Some(name) = self.own.keys().next() {
            let reason = "this process has only some of its rows; save it in parts with the other processes";
            return Err(Error::entry("save", name, reason));
        }
        self.layout_beside_parts(shards)
    }

    /// Acts like [`layout`](Self::layout), for a checkpoint in which each process writes its own rows.
    pub(crate) fn layout_beside_parts(&self, shards: usize) -> Result<Layout<'_>> {
        if shards == 0 {
            let reason = "the number of shards is 0, but must be at least 1".into();
            return Err(Error::InvalidArgument { operation: "save", reason });
        }
        let mut slices = Vec::new();
        for (name, tensor) in &self.tensors {
            tensor.require_complete(name)?;
            slices.extend(tensor.slices.iter().map(|(first, rows)| (name, tensor, *first, rows)));
        }
        let sizes: Vec<_> = slices
            .iter()
            .map(|(_, _, _, rows)| Slice {
                rows: rows.dims().first().copied().unwrap_or(1),
                bytes: rows.size(0..rows.len()),
            })
            .collect();
        let mut layout = Layout { files: Vec::new(), entries: BTreeMap::new(), metadata: &self.metadata };
        for ranges in plan(&sizes, shards) {
            let mut keys = BTreeSet::new();
            let mut tensors = Vec::new();
            for RowRange { slice, rows: of_slice } in ranges {
                let (name, tensor, first, rows) = slices[slice];
                let (entry, mut stored) =
                    store(name, tensor, first, rows, of_slice, layout.files.len(), &mut keys);
                let of_tensor = layout.entries.entry(name.clone()).or_insert_with(|| {
                    let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
                    Entry { dtype, shape, slices: Vec::new() }
                });
                of_tensor.slices.push(entry);
                tensors.append(&mut stored);
            }
            layout.files.push(tensors);
        }
        for entry in layout.entries.values_mut() {
            entry.slices.sort_by(|a, b| (&a.offset, &a.shape).cmp(&(&b.offset, &b.shape)));
        }
        Ok(layout)
    }
}

impl Tensor {
    fn require_complete(&self, name: &str) -> Result<()> {
        let Some(total) = self.shape.first() else { return Ok(()) };
        let mut end = 0;
        for (start, rows) in &self.slices {
            if *start > end {
                break;
            }
            end = start + rows.dims()[0];
        }
        if end == *total {
            return Ok(());
        }
        let next = self.slices.range(end..).next().map_or(*total, |(start, _)| *start);
        let reason = format!("rows {end}..{next} of {} are missing", show(self.dtype, &self.shape));
        Err(Error::entry("save", name, reason))
    }
}

/// Returns an error if the elements of a tensor have no fixed size, or if the tensor would have more than `isize::MAX`
/// bytes. In this check, an axis of size 0 counts as 1.
pub(crate) fn require_fixed_size(
    operation: &'static str,
    name: &str,
    dtype: DType,
    dims: &[usize],
) -> Result<()> {
    let Some(width) = dtype.bytes() else {
        let reason = format!("{} has elements without a fixed size; use insert", show(dtype, dims));
        return Err(Error::entry(operation, name, reason));
    };
    // Without a check in between, a 0 would hide an overflow.
    let bytes = dims.iter().try_fold(width, |bytes, size| bytes.checked_mul((*size).max(1)));
    if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
        let reason = format!("{} has more bytes than a file can have", show(dtype, dims));
        return Err(Error::entry(operation, name, reason));
    }
    Ok(())
}

/// The planned contents of a checkpoint's files.
pub(crate) struct Layout<'a> {
    pub(crate) files: Vec<Vec<PendingTensor<'a>>>,
    pub(crate) entries: BTreeMap<String, Entry>,
    metadata: &'a BTreeMap<String, Value>,
}

impl Layout<'_> {
    /// Creates the index. `files` are the entries of the files, which must have been written already.
    pub(crate) fn index(&self, files: Vec<crate::index::FileEntry>) -> Index {
        Index::new(self.metadata.clone(), files, self.entries.clone())
    }
}

/// Returns the index entry for some rows of a slice, and the tensors to add to the file: one, or two for strings.
///
/// `rows` is the slice, which begins at row `first` of the tensor. `of_slice` is the range of rows within the slice.
/// `file` is the index of the file, and `keys` collects the keys in it.
fn store<'a>(
    name: &str,
    tensor: &Tensor,
    first: usize,
    rows: &'a Rows,
    of_slice: Range<usize>,
    file: usize,
    keys: &mut BTreeSet<String>,
) -> (SliceEntry, Vec<PendingTensor<'a>>) {
    let (mut shape, mut offset) = (rows.dims().to_vec(), vec![0; rows.dims().len()]);
    let mut key = name.to_string();
    let mut elements = 0..rows.len();
    if let (Some(count), Some(start)) = (shape.first_mut(), offset.first_mut()) {
        let row = elements.end.checked_div(*count).unwrap_or(0);
        elements = of_slice.start * row..of_slice.end * row;
        *count = of_slice.len();
        *start = first + of_slice.start;
        if of_slice.len() != tensor.shape[0] {
            key = format!("{name}[{}:{}]", *start, *start + of_slice.len());
        }
    }
    let dtype = rows.dtype();
    let (stored, ends) = match encoding::stored(dtype, &shape) {
        Some(stored) => (stored, None),
        None => {
            let ends = rows.ends(elements.clone());
            let bytes = ends.last().map_or(0, |end| *end as usize);
            (encoding::Stored { dtype: safetensors::Dtype::U8, shape: vec![bytes] }, Some(ends))
        }
    };
    let key = unused(key, keys);
    let bytes = match ends {
        None => rows.size(elements),
        Some(_) => stored.shape[0],
    };
    let of_tensor = name.to_owned();
    let write = Box::new(move |sink: &mut dyn Write| rows.write(&of_tensor, of_slice.clone(), sink));
    let mut tensors =
        vec![PendingTensor { key: key.clone(), dtype: stored.dtype, shape: stored.shape, bytes, write }];
    let ends = ends.map(|ends| {
        let key = unused(format!("{key}.ends"), keys);
        let (bytes, shape) = (8 * ends.len(), shape.clone());
        let write = Box::new(move |sink: &mut dyn Write| {
            ends.iter().try_for_each(|end| sink.write_all(&end.to_le_bytes()))
        });
        tensors.push(PendingTensor { key: key.clone(), dtype: safetensors::Dtype::U64, shape, bytes, write });
        key
    });
    (SliceEntry { file, key, ends, offset, shape, step: 1 }, tensors)
}

/// Makes `key` unique within the file and different from the keys that safetensors reserves, by appending `_`.
pub(crate) fn unused(mut key: String, keys: &mut BTreeSet<String>) -> String {
    while key == "__metadata__" || !keys.insert(key.clone()) {
        key.push('_');
    }
    key
}
