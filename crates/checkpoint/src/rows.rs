//! The rows of a tensor that is to be saved: in memory, or read while the checkpoint is written.

use crate::live::{Live, SourceError};
use crate::progress::Stopped;
use crate::{Error, Result, encoding};
use distribute_tensor::{DType, HostTensor, codec};
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::Arc;

/// The maximum size in bytes of the rows that are read at once, unless a single row is larger.
const PIECE: usize = 8 << 20;

/// A function that reads a range of rows of a tensor.
type ReadRows = dyn Fn(Range<usize>) -> Result<HostTensor, SourceError> + Send + Sync;

/// Consecutive rows of a tensor. A scalar is one row.
#[derive(Clone)]
pub(crate) enum Rows {
    Memory(HostTensor),
    /// Rows that are read when the file is written. The elements have a fixed size.
    Read {
        dtype: DType,
        dims: Vec<usize>,
        read: Arc<ReadRows>,
    },
    /// Rows that are copied before a save in the background begins to write, or when the file is written. The elements
    /// have a fixed size.
    Live {
        dtype: DType,
        dims: Vec<usize>,
        live: Live,
    },
}

/// The failure to read rows of a tensor while a file was being written.
#[derive(Debug)]
struct Unreadable {
    name: String,
    source: SourceError,
}

impl Rows {
    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Memory(rows) => rows.dtype(),
            Self::Read { dtype, .. } | Self::Live { dtype, .. } => *dtype,
        }
    }

    pub(crate) fn dims(&self) -> &[usize] {
        match self {
            Self::Memory(rows) => rows.dims(),
            Self::Read { dims, .. } | Self::Live { dims, .. } => dims,
        }
    }

    /// Returns the live tensor from which these rows are still to be copied; `None` for all other rows.
    pub(crate) fn live(&self) -> Option<&Live> {
        match self {
            Self::Live { live, .. } => Some(live),
            Self::Memory(_) | Self::Read { .. } => None,
        }
    }

    /// Replaces the rows by a copy.
    ///
    /// # Errors
    /// Returns an error if the copy has another dtype or shape.
    pub(crate) fn set_copy(&mut self, copy: HostTensor) -> Result<(), SourceError> {
        *self = Self::Memory(same(copy, self.dtype(), self.dims())?);
        Ok(())
    }

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.dims().iter().product()
    }

    /// Returns the end offset of each string. See [`encoding::ends`].
    pub(crate) fn ends(&self, elements: Range<usize>) -> Vec<u64> {
        match self {
            Self::Memory(rows) => encoding::ends(rows, elements),
            Self::Read { .. } | Self::Live { .. } => Vec::new(),
        }
    }

    /// Returns the number of bytes that the given elements occupy in a file. See [`encoding::size`].
    pub(crate) fn size(&self, elements: Range<usize>) -> usize {
        match self {
            Self::Memory(rows) => encoding::size(rows, elements),
            Self::Read { dtype, .. } | Self::Live { dtype, .. } => {
                dtype.bytes().unwrap_or_default() * elements.len()
            }
        }
    }

    /// Writes the bytes of a range of rows. `name` is the name of the tensor in errors.
    ///
    /// # Errors
    /// Returns the error of `sink`, or an error of reading the rows, which [`error`] extracts.
    pub(crate) fn write(&self, name: &str, rows: Range<usize>, sink: &mut dyn Write) -> io::Result<()> {
        let row: usize = self.dims().get(1..).unwrap_or_default().iter().product();
        let unreadable = |source| io::Error::other(Unreadable { name: name.to_owned(), source });
        let mut write = |all: &HostTensor, elements| {
            codec::chunks(all.buffer(), elements).try_for_each(|bytes| sink.write_all(&bytes))
        };
        match self {
            Self::Memory(all) => write(all, rows.start * row..rows.end * row),
            Self::Live { dtype, dims, live } => {
                // The tensors are released before the write, which may take long.
                let copy = live.tensors.hold().and_then(|held| held.copy(live.index));
                let copy = copy.and_then(|copy| same(copy, *dtype, dims)).map_err(unreadable)?;
                write(&copy, rows.start * row..rows.end * row)
            }
            Self::Read { dtype, dims, read } => {
                for piece in pieces(rows, row * dtype.bytes().unwrap_or_default()) {
                    let count = piece.len();
                    let found = read(piece).and_then(|found| fits(found, *dtype, count, dims));
                    let found = found.map_err(unreadable)?;
                    write(&found, 0..found.len())?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows({}{:?})", self.dtype(), self.dims())
    }
}

/// Splits a range of rows into pieces of at most 8 MiB, but of at least one row each.
pub(crate) fn pieces(rows: Range<usize>, row_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let (end, step) = (rows.end, (PIECE / row_bytes.max(1)).max(1));
    rows.step_by(step).map(move |start| start..end.min(start.saturating_add(step)))
}

/// Returns `found` if it has the requested dtype, number of rows and row shape, otherwise an error.
fn fits(found: HostTensor, dtype: DType, rows: usize, dims: &[usize]) -> Result<HostTensor, SourceError> {
    let row = dims.get(1..).unwrap_or_default();
    if found.dtype() == dtype && found.dims().split_first() == Some((&rows, row)) {
        return Ok(found);
    }
    Err(format!("{} was read, instead of {rows} rows of {dtype}{row:?}", found.describe()).into())
}

/// Returns `found` if it has the requested dtype and shape, otherwise an error.
fn same(found: HostTensor, dtype: DType, dims: &[usize]) -> Result<HostTensor, SourceError> {
    if found.dtype() == dtype && found.dims() == dims {
        return Ok(found);
    }
    Err(format!("{} was read, instead of {}", found.describe(), crate::error::show(dtype, dims)).into())
}

/// Returns the error of a failed write: [`Error::Source`] if rows could not be read, [`Error::Interrupted`] if a
/// [`Progress`](crate::Progress) function ended the write, otherwise `io(error)`.
pub(crate) fn error(error: io::Error, io: impl FnOnce(io::Error) -> Error) -> Error {
    match error.downcast::<Unreadable>() {
        Ok(Unreadable { name, source }) => Error::Source { name, source },
        Err(error) => match error.downcast::<Stopped>() {
            Ok(Stopped(source)) => Error::Interrupted { source },
            Err(error) => io(error),
        },
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rows of {:?} cannot be read: {}", self.name, self.source)
    }
}

impl std::error::Error for Unreadable {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reader, Writer};

    fn table() -> HostTensor {
        // Three pieces of at most 8 MiB.
        let (rows, width) = (5_000, 1_000);
        let values: Vec<f32> = (0..rows * width).map(|i| i as f32).collect();
        HostTensor::new(values, [rows, width]).unwrap()
    }

    #[test]
    fn rows_that_are_read_during_the_save_give_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let table = table();
        let files = |name: &str, writer: &Writer, shards| {
            let path = folder.path().join(name);
            writer.save(&path, shards).unwrap();
            distribute_testing::names_in(&path)
                .into_iter()
                .map(|file| std::fs::read(path.join(file)).unwrap())
                .collect::<Vec<_>>()
        };
        for shards in [1, 3] {
            let mut memory = Writer::new();
            memory.insert("t", table.clone()).unwrap();
            memory.insert("other", HostTensor::scalar(1i64)).unwrap();
            let mut read = Writer::new();
            let all = table.clone();
            read.insert_read("t", DType::F32, [5_000, 1_000], move |rows| {
                Ok(all.narrow(0, rows.start, rows.len())?)
            })
            .unwrap();
            read.insert("other", HostTensor::scalar(1i64)).unwrap();
            let (memory, read) = (
                files(&format!("memory{shards}"), &memory, shards),
                files(&format!("read{shards}"), &read, shards),
            );
            assert!(memory == read, "{shards} shards");
        }
        let reader = Reader::open(folder.path().join("read3")).unwrap();
        reader.verify().unwrap();
        assert!(reader.tensor("t").unwrap() == table);
    }

    #[test]
    fn an_error_of_the_source_names_the_tensor_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let mut writer = Writer::new();
        writer
            .insert_read("t", DType::F32, [5_000, 1_000], |rows| match rows.start {
                0 => Ok(HostTensor::zeros(DType::F32, [rows.len(), 1_000])?),
                _ => Err("ps 1 is gone".into()),
            })
            .unwrap();
        let error = writer.save(&path, 1).unwrap_err();
        assert!(matches!(&error, Error::Source { name, .. } if name == "t"), "{error:?}");
        assert!(error.to_string().contains("ps 1 is gone"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

        let mut writer = Writer::new();
        writer.insert_read("t", DType::F32, [2, 3], |_| Ok(HostTensor::zeros(DType::F32, [3, 3])?)).unwrap();
        let error = writer.save(&path, 1).unwrap_err().to_string();
        assert!(error.contains("instead of 2 rows of float32[3]"), "{error}");
        assert!(writer.insert_read("t", DType::F32, [2, 3], |_| Err("".into())).is_err());
        for dims in
            [vec![usize::MAX, 2], vec![1 << 40, 1 << 30], vec![0, usize::MAX / 2, 4], vec![usize::MAX / 4]]
        {
            let error = writer.insert_read("huge", DType::F32, dims, |_| Err("".into())).unwrap_err();
            assert!(error.to_string().contains("more bytes than a file"), "{error}");
        }
        assert!(writer.insert_read("s", DType::String, [2, 3], |_| Err("".into())).is_err());
        assert!(writer.insert_read("0", DType::F32, [], |_| Err("".into())).is_err());
    }

    #[test]
    fn pieces_cover_all_rows_once() {
        for (rows, row_bytes) in
            [(0..0, 4), (3..3, 0), (0..10, 4 << 20), (7..30, 9 << 20), (5..1_000_000, 100)]
        {
            let all: Vec<_> = pieces(rows.clone(), row_bytes).collect();
            assert!(
                all.iter()
                    .all(|piece| !piece.is_empty() && (piece.len() == 1 || piece.len() * row_bytes <= PIECE))
            );
            let end = all.iter().try_fold(rows.start, |end, piece| (piece.start == end).then_some(piece.end));
            assert_eq!(end, Some(rows.end));
        }
    }
}
