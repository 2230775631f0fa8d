//! The export of changed rows to files, for programs that serve them.
//!
//! The exported files of a table are in one folder, in the order of their names: `0000000000.safetensors`, … Each
//! contains the tensors `rows` (`int64`), `versions` (`uint64`) and `values`, and its position in its metadata.
//!
//! A file gets its name only when it is complete. The newest file is the only record of what was exported, so an export
//! that was killed continues without missing or repeating a row.

use distribute_checkpoint::file_dtype;
use distribute_files::{LockFile, WholeFile};
use distribute_ps_tables::{ChangedRows, Channel, ChannelError, LogPosition, Request, Response};
use distribute_tensor::{DType, HostTensor, codec};
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The suffix of the names of exported files.
const SUFFIX: &str = ".safetensors";

/// The name of the file that an export locks. It has no suffix, so no exported file has this name. Callers escape names
/// of tables that begin with a dot, so no folder of a table has it either.
const LOCK: &str = ".lock";

/// The maximum length of a file's header in bytes. A header describes three tensors, and contains a few numbers.
const MAX_HEADER: u64 = 1 << 20;

/// The reason why rows cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The server has not sent the rows.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A file cannot be read or written.
    #[error("export: {action} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        action: &'static str,
        /// The path of the file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The newest file of the folder is not an exported file.
    #[error("export: {} {reason}: export to another folder, or remove the file to export all rows again", path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// A description of the problem.
        reason: String,
    },
    /// Another process, or another [`TableExport`] of this process, exports to the folder.
    #[error("export: another export writes to {}: end it, or export to another folder", folder.display())]
    InUse {
        /// The path of the folder.
        folder: PathBuf,
    },
    /// Rows of this dtype cannot be exported.
    #[error("export: table {table} has the dtype {}, which is not exported", dtype.name())]
    DType {
        /// The name of the table.
        table: String,
        /// The dtype of the table.
        dtype: DType,
    },
}

/// An exported file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of rows.
    pub rows: usize,
    /// Whether the file contains all rows of the table. Readers must then drop the rows of earlier files.
    pub complete: bool,
}

/// An export of the changed rows of one table to a folder. The folder is locked until this value is dropped.
///
/// ```
/// use distribute_cluster::{ClusterSpec, Job};
/// use distribute_ps_server::{Connection, ParameterServer, SERVICE, ServerOptions, TableExport};
/// use distribute_ps_tables::{Channel, Request, TableSpec};
/// use distribute_rpc::{ClientBuilder, Server};
/// use distribute_tensor::{HostTensor, Write};
/// use std::time::Duration;
///
/// let (folder, minute) = (tempfile::tempdir()?, Duration::from_secs(60));
/// let cluster = ClusterSpec::from_lists([("chief", ["127.0.0.1:0"]), ("ps", ["127.0.0.1:0"])])?;
/// let tables = ParameterServer::open(ServerOptions::new(folder.path().join("ps-0")))?;
/// let server = Server::builder(cluster).job_name("ps").service(SERVICE, tables).start()?;
/// let ps = Connection::new(ClientBuilder::new(server.cluster().clone(), Job::Chief.task(0)), Job::Ps.task(0));
/// ps.call(Request::Create(TableSpec::values("n", HostTensor::vector(vec![0i64; 4]))), minute)?;
///
/// let mut export = TableExport::open(folder.path().join("n"))?;
/// let all = export.export(&ps, "n", |row| row, minute)?.expect("the first export has all rows");
/// assert!(all.complete && all.rows == 4);
/// let (how, values) = (Write::Add, HostTensor::vector(vec![1i64]));
/// ps.call(Request::WriteRows { table: "n".into(), how, rows: vec![2], values }, minute)?;
/// let one = export.export(&ps, "n", |row| row, minute)?.expect("a row has changed");
/// assert!(!one.complete && one.rows == 1);
/// assert_eq!(export.export(&ps, "n", |row| row, minute)?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TableExport {
    folder: PathBuf,
    /// The number of the next file.
    next: u64,
    /// The position from which the next export continues; `None` if it must contain all rows.
    position: Option<LogPosition>,
    /// The table of the newest file.
    table: Option<String>,
    /// The interval between files that contain all rows; 0 for none after the first.
    complete_every: u64,
    _lock: LockFile,
}

impl TableExport {
    /// Opens the folder for a table, or creates it. The export continues after the newest file.
    ///
    /// # Errors
    /// - [`ExportError::Io`]: the folder cannot be read or created.
    /// - [`ExportError::File`]: the newest file is not an exported file.
    /// - [`ExportError::InUse`]: another export writes to the folder.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, ExportError> {
        let folder = folder.into();
        let io = |action| ExportError::io(action, &folder);
        // Other users may read it if the umask allows that, as for the files.
        std::fs::create_dir_all(&folder).map_err(io("creating"))?;
        let lock = LockFile::acquire(folder.join(LOCK)).map_err(io("locking"))?;
        let lock = lock.ok_or_else(|| ExportError::InUse { folder: folder.clone() })?;
        let mut newest = None;
        for entry in std::fs::read_dir(&folder).map_err(io("reading"))? {
            let name = entry.map_err(io("reading"))?.file_name();
            newest = newest.max(name.to_str().and_then(number));
        }
        let found = newest.map(|newest| about(&folder.join(name(newest)))).transpose()?;
        let (position, table) = found.unzip();
        let next = newest.map_or(0, |newest| newest + 1);
        Ok(Self { folder, next, position, table, complete_every: 0, _lock: lock })
    }

    /// Makes each file whose number is a multiple of `files` contain all rows. New readers can begin with such a file,
    /// and older files can be removed. With 0, the default, only the first file contains all rows.
    #[must_use]
    pub fn complete_every(self, files: u64) -> Self {
        Self { complete_every: files, ..self }
    }

    /// Makes the next file contain all rows, for example because `id` maps rows to other ids than before.
    pub fn start_over(&mut self) {
        self.position = None;
    }

    /// Returns whether rows of a dtype can be exported.
    pub fn supports(dtype: DType) -> bool {
        exported(dtype).is_some()
    }

    /// Writes a file with the rows of `table` that have changed since the newest file or, at first, with all rows.
    /// Returns `None`, and writes nothing, if no row has changed. `id` maps the index of a row in the table to its id.
    ///
    /// # Errors
    /// - [`ExportError::Channel`]: the server has not sent the rows, for example because it has no folder.
    /// - [`ExportError::Io`]: the file cannot be written.
    /// - [`ExportError::File`]: the newest file has rows of another table, or the next file exists.
    /// - [`ExportError::DType`]: rows of this dtype cannot be exported.
    pub fn export(
        &mut self,
        channel: &dyn Channel,
        table: &str,
        id: impl Fn(i64) -> i64,
        timeout: Duration,
    ) -> Result<Option<ExportedFile>, ExportError> {
        let wrong = |number, reason| ExportError::File { path: self.folder.join(name(number)), reason };
        if let Some(found) = self.table.as_ref().filter(|found| *found != table) {
            return Err(wrong(self.next - 1, format!("has rows of table {found}, not of {table}")));
        }
        let mut changed = changed(channel, table, self.position, timeout)?;
        let is_due = self.complete_every > 0 && self.next.is_multiple_of(self.complete_every);
        if is_due && !changed.complete && !changed.rows.is_empty() {
            changed = self::changed(channel, table, None, timeout)?;
        }
        changed.rows.iter_mut().for_each(|row| *row = id(*row));
        if changed.rows.is_empty() && !changed.complete {
            // The file with the next change covers this range as well.
            self.position = Some(changed.position);
            return Ok(None);
        }
        let path = self.folder.join(name(self.next));
        let bytes = encode(table, &changed)?;
        if path.exists() {
            return Err(wrong(self.next, "exists already, from another export".to_owned()));
        }
        WholeFile::write(&path, &bytes).map_err(ExportError::io("writing", &path))?;
        (self.next, self.position) = (self.next + 1, Some(changed.position));
        self.table = Some(table.to_owned());
        Ok(Some(ExportedFile { path, rows: changed.rows.len(), complete: changed.complete }))
    }
}

/// Requests the rows of a table that have changed since a position, or all rows.
fn changed(
    channel: &dyn Channel,
    table: &str,
    since: Option<LogPosition>,
    timeout: Duration,
) -> Result<ChangedRows, ExportError> {
    match channel.call(Request::Changed { table: table.to_owned(), since }, timeout)? {
        Response::Changed(changed) => Ok(changed),
        other => {
            let (server, request) = (channel.server().to_owned(), format!("changed of table {table}"));
            Err(ChannelError::Answer { server, request, found: other.name().to_owned() }.into())
        }
    }
}

fn name(number: u64) -> String {
    format!("{number:010}{SUFFIX}")
}

fn number(name: &str) -> Option<u64> {
    name.strip_suffix(SUFFIX)?.parse().ok()
}

/// Returns the dtype of the exported values; `None` if rows of this dtype cannot be exported.
fn exported(dtype: DType) -> Option<Dtype> {
    file_dtype(dtype).filter(|dtype| *dtype != Dtype::C64)
}

/// Encodes changed rows as the contents of a file.
fn encode(table: &str, changed: &ChangedRows) -> Result<Vec<u8>, ExportError> {
    let ChangedRows { position, complete, rows, numbers, values } = changed;
    let unsupported = || ExportError::DType { table: table.to_owned(), dtype: values.dtype() };
    let dtype = exported(values.dtype()).ok_or_else(unsupported)?;
    let bytes = |tensor: &HostTensor| {
        let mut bytes = Vec::new();
        codec::append(tensor.buffer(), 0..tensor.len(), &mut bytes);
        bytes
    };
    let [rows, numbers] = [HostTensor::vector(rows.clone()), HostTensor::vector(numbers.clone())];
    let tensors =
        [("rows", Dtype::I64, &rows), ("versions", Dtype::U64, &numbers), ("values", dtype, values)];
    let tensors = tensors.map(|(name, dtype, tensor)| (name, dtype, tensor.dims().to_vec(), bytes(tensor)));
    let views = tensors
        .iter()
        .map(|(name, dtype, dims, bytes)| Ok((*name, TensorView::new(*dtype, dims.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>().map_err(|_| unsupported())?;
    let metadata = HashMap::from([
        ("table".to_owned(), table.to_owned()),
        ("history".to_owned(), position.history.to_string()),
        ("next".to_owned(), position.next.to_string()),
        ("complete".to_owned(), complete.to_string()),
    ]);
    safetensors::serialize(views, Some(metadata)).map_err(|_| unsupported())
}

/// Reads the position and the name of the table from an exported file.
fn about(path: &Path) -> Result<(LogPosition, String), ExportError> {
    let wrong = |reason: &str| ExportError::File { path: path.to_path_buf(), reason: reason.to_owned() };
    let header = header(path).map_err(ExportError::io("reading", path))?;
    let header = header.ok_or_else(|| wrong("has no header"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&header).map_err(|_| wrong("has no header"))?;
    let text = |name: &str| metadata.get("__metadata__")?.get(name)?.as_str();
    let number = |name: &str| text(name)?.parse().ok();
    let position = number("history").zip(number("next")).map(|(history, next)| LogPosition { history, next });
    let about = position.zip(text("table").map(str::to_owned));
    about.ok_or_else(|| wrong("has no position"))
}

/// Reads the header of a file; `None` if its length exceeds the maximum.
fn header(path: &Path) -> io::Result<Option<Vec<u8>>> {
    use std::io::Read;
    let mut file = distribute_files::open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER {
        return Ok(None);
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    Ok(Some(header))
}

impl ExportError {
    fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distribute_ps_tables::{LocalChannel, Started};
    use std::sync::Arc;

    /// A server on which row 3 has changed since any position.
    #[derive(Debug)]
    struct Changing;

    impl Channel for Changing {
        fn server(&self) -> &str {
            "ps 0"
        }

        fn start(&self, _: Request, _: Duration) -> Result<Started, ChannelError> {
            unreachable!("export calls")
        }

        fn call(&self, request: Request, _: Duration) -> Result<Response, ChannelError> {
            let Request::Changed { since, .. } = request else { unreachable!("{request:?}") };
            let position = LogPosition { history: 1, next: since.map_or(5, |since| since.next + 1) };
            let (rows, numbers, values) = (vec![3], vec![position.next - 1], HostTensor::vector(vec![1f32]));
            Ok(Response::Changed(ChangedRows { position, complete: since.is_none(), rows, numbers, values }))
        }
    }

    #[test]
    fn some_files_have_all_rows_so_that_a_reader_can_begin_there() {
        let folder = tempfile::tempdir().unwrap();
        let minute = Duration::from_secs(60);
        let mut complete = Vec::new();
        for restart in 0..2 {
            let mut export = TableExport::open(folder.path()).unwrap().complete_every(3);
            for i in 0..4 {
                if restart == 1 && i == 1 {
                    export.start_over();
                }
                complete.push(export.export(&Changing, "t", |row| row, minute).unwrap().unwrap().complete);
            }
        }
        assert_eq!(complete, [true, false, false, true, false, true, true, false]);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_as_readable_as_its_files() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        std::fs::create_dir(folder.path().join("other")).unwrap();
        let _export = TableExport::open(folder.path().join("a/b")).unwrap();
        let expected = mode(&folder.path().join("other"));
        assert_eq!(["a", "a/b"].map(|name| mode(&folder.path().join(name))), [expected; 2]);
    }

    #[test]
    fn a_folder_continues_after_its_newest_file_and_refuses_others() {
        let folder = tempfile::tempdir().unwrap();
        let changed = ChangedRows {
            position: LogPosition { history: u64::MAX, next: 7 },
            complete: true,
            rows: vec![3],
            numbers: vec![6],
            values: HostTensor::new(vec![1f32, 2.], [1, 2]).unwrap(),
        };
        std::fs::write(folder.path().join(name(9)), encode("t", &changed).unwrap()).unwrap();
        std::fs::write(folder.path().join("0000000010.safetensors.part"), "incomplete").unwrap();
        let mut opened = TableExport::open(folder.path()).unwrap();
        assert_eq!((opened.next, opened.position), (10, Some(changed.position)));
        let error = TableExport::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with("export: another export writes to /"), "{error}");
        // The folder has another table, which is found before the server is asked.
        let nobody = LocalChannel::new(0, Arc::default());
        let minute = Duration::from_secs(60);
        let error = opened.export(&nobody, "u", |row| row, minute).unwrap_err().to_string();
        assert!(error.contains("0000000009.safetensors has rows of table t, not of u"), "{error}");
        drop(opened);
        std::fs::write(folder.path().join(name(10)), [9; 30]).unwrap();
        let error = TableExport::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("0000000010.safetensors has no header: export to another folder"), "{error}");
        let strings = ChangedRows { values: HostTensor::vector(vec![vec![0u8]]), ..changed };
        assert!(encode("t", &strings).unwrap_err().to_string().contains("table t has the dtype string"));
    }
}
