//! [`Location`]: the location of a file.

use super::url::{is_url, redact, redact_message};
use super::{ElementLimit, FileState};
use crate::{Error, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The location of a file: a local path, bytes in memory with a name, or a URL (`s3://`, `gs://`, `az://`,
/// `http://`, `https://`, `file://`) with the feature `object-store`.
///
/// Text that begins with a scheme such as `s3://` is a URL; any other text is a path. Nothing is opened before
/// [`open`](Self::open) is called.
///
/// A local path must lead to a file that can be read repeatedly. Pipes are not accepted: named pipes, standard
/// input, and process substitutions of a shell (`<(…)`). Each pass reads its files from the beginning, and would
/// find only the rest of a pipe.
///
/// When a URL is displayed, as in errors, `…` replaces the user, the password and everything after a `?`.
///
/// ```
/// use distribute_data::Location;
///
/// let local = Location::from("data/train.csv");
/// let memory = Location::bytes("digits.csv", b"0,7,3\n");
/// assert_eq!(local.to_string(), "data/train.csv");
/// let mut text = String::new();
/// memory.open()?.read_to_string(&mut text).unwrap();
/// assert_eq!(text, "0,7,3\n");
/// # Ok::<(), distribute_data::Error>(())
/// ```
#[derive(Clone)]
pub struct Location {
    kind: Kind,
    limit: ElementLimit,
    /// The size and tag of the object, if it was found in a listing.
    listed: Option<FileState>,
}

#[derive(Clone)]
enum Kind {
    Path(PathBuf),
    Bytes(Arc<str>, Arc<dyn AsRef<[u8]> + Send + Sync>),
    Url(String),
}

impl Location {
    /// Creates a location for bytes in memory, such as those of `include_bytes!`. Errors contain `name`.
    pub fn bytes(name: impl Into<String>, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::of(Kind::Bytes(name.into().into(), Arc::new(bytes)))
    }

    fn of(kind: Kind) -> Self {
        Self { kind, limit: ElementLimit::new("Location::element_limit"), listed: None }
    }

    /// Sets the maximum memory in bytes that one element of the file may take. Depending on the format, an element is a
    /// line, a row, a record, a sample, a compressed array, or all arrays of a `.npz` file together. A larger element
    /// results in an error with its position. The default is 256 MiB. Limits up to 1 MiB are not exact.
    ///
    /// Without a limit, a file of a few megabytes could exhaust the memory, because compressed bytes may expand
    /// to a thousand times their size.
    ///
    /// ```
    /// use distribute_data::{Location, text_lines};
    /// let lines = text_lines(Location::from("films.jsonl.gz").element_limit(1 << 30));
    /// ```
    pub fn element_limit(self, bytes: u64) -> Self {
        Self { limit: self.limit.of(bytes), ..self }
    }

    pub(crate) fn limit(&self) -> ElementLimit {
        self.limit
    }

    /// Returns the path, URL or name exactly as it was given, including secrets.
    pub(crate) fn as_given(&self) -> &[u8] {
        self.key().1.as_encoded_bytes()
    }

    /// Returns the local path; `None` for other kinds of locations.
    pub fn path(&self) -> Option<&Path> {
        match &self.kind {
            Kind::Path(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the bytes; `None` if they are not in memory.
    pub(crate) fn bytes_in_memory(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Bytes(_, bytes) => Some((**bytes).as_ref()),
            _ => None,
        }
    }

    /// Returns the same location with the size and tag of its object from a listing.
    #[cfg(feature = "object-store")]
    pub(super) fn listed_as(self, state: FileState) -> Self {
        Self { listed: Some(state), ..self }
    }

    /// Returns the size and tag of the object; `None` if it was not found in a listing.
    pub(crate) fn listed(&self) -> Option<FileState> {
        self.listed
    }

    /// Opens the file, and returns an unbuffered reader of its raw bytes.
    /// [`Compression::open`](super::Compression::open) decompresses them.
    ///
    /// # Errors
    ///
    /// - [`Error::Io`]: the file cannot be opened.
    /// - [`Error::Feature`]: the location is a URL, and the feature `object-store` is not enabled.
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        match &self.kind {
            Kind::Path(path) => Ok(Box::new(super::open::open(path).map_err(|e| self.io_error(e))?)),
            Kind::Bytes(_, bytes) => Ok(Box::new(Shared { bytes: bytes.clone(), next: 0 })),
            #[cfg(feature = "object-store")]
            Kind::Url(url) => {
                let object = super::object_store::open(url).map_err(|e| self.io_error(e))?;
                Ok(Box::new(Redacting { location: self.clone(), object }))
            }
            #[cfg(not(feature = "object-store"))]
            Kind::Url(_) => Err(Error::Feature { what: self.to_string(), feature: "object-store" }),
        }
    }

    /// Opens a local file, for reading at any position. Returns `None` for other kinds of locations.
    pub(crate) fn open_file(&self) -> Result<Option<File>> {
        self.path().map(|path| super::open::open(path).map_err(|e| self.io_error(e))).transpose()
    }

    /// Creates the error for a failed read, without secrets.
    pub(crate) fn io_error(&self, source: std::io::Error) -> Error {
        Error::Io { path: self.to_string(), source: self.redact(source) }
    }

    /// Removes the secrets of a URL from an error of the operating system or a library.
    fn redact(&self, error: std::io::Error) -> std::io::Error {
        match &self.kind {
            Kind::Url(url) => std::io::Error::new(error.kind(), redact_message(url, &error.to_string())),
            _ => error,
        }
    }

    /// Returns the key by which locations are compared: their kind, their name and, for bytes, their address in
    /// memory.
    fn key(&self) -> (u8, &OsStr, usize) {
        match &self.kind {
            Kind::Path(path) => (0, path.as_os_str(), 0),
            Kind::Url(url) => (1, url.as_ref(), 0),
            Kind::Bytes(name, bytes) => (2, name.as_ref().as_ref(), Arc::as_ptr(bytes).addr()),
        }
    }
}

impl From<String> for Location {
    fn from(text: String) -> Self {
        Self::of(if is_url(&text) { Kind::Url(text) } else { Kind::Path(text.into()) })
    }
}
impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::of(Kind::Path(path))
    }
}
impl From<&str> for Location {
    fn from(text: &str) -> Self {
        text.to_string().into()
    }
}
impl From<&String> for Location {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}
impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        path.to_path_buf().into()
    }
}
impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        path.clone().into()
    }
}
impl From<&Location> for Location {
    fn from(location: &Location) -> Self {
        location.clone()
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.kind {
            Kind::Path(path) => path.display().fmt(f),
            Kind::Bytes(name, _) => f.pad(name),
            Kind::Url(url) => f.pad(&redact(url)),
        }
    }
}
impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{self}'")
    }
}

/// Compares locations. Bytes in memory are equal if they are the same allocation and have the same name. The
/// limit for an element is ignored.
impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Location {}
/// Orders paths before URLs, and URLs before bytes in memory. Within each kind, locations are ordered by the
/// bytes of their names.
impl Ord for Location {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}
impl PartialOrd for Location {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl std::hash::Hash for Location {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

/// A reader whose errors contain no secrets.
#[cfg(feature = "object-store")]
struct Redacting {
    location: Location,
    object: Box<dyn Read + Send>,
}

#[cfg(feature = "object-store")]
impl Read for Redacting {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.object.read(buffer).map_err(|e| self.location.redact(e))
    }
}

/// A reader of bytes in memory that are shared with other passes.
struct Shared {
    bytes: Arc<dyn AsRef<[u8]> + Send + Sync>,
    next: usize,
}

impl Read for Shared {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut rest = (*self.bytes).as_ref().get(self.next..).unwrap_or_default();
        let read = rest.read(buffer)?;
        self.next += read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dataset;

    #[test]
    fn text_is_a_url_or_a_path() {
        assert!(Location::from("s3://b/k").path().is_none());
        assert_eq!(Location::from("/a://b").path(), Some(Path::new("/a://b")));
        assert_eq!(Location::from("a/b"), Location::from(PathBuf::from("a/b")));
        assert_ne!(Location::from("s3://b/k"), Location::from(PathBuf::from("s3://b/k")));
    }

    #[test]
    fn bytes_are_equal_by_name_and_place_and_read_from_the_start_each_time() {
        let bytes = Location::bytes("a", vec![1u8, 2]);
        assert_eq!(bytes, bytes.clone());
        assert_ne!(bytes, Location::bytes("a", vec![1u8, 2]));
        for _ in 0..2 {
            let mut read = Vec::new();
            bytes.open().unwrap().read_to_end(&mut read).unwrap();
            assert_eq!(read, [1, 2]);
        }
        assert_eq!(format!("{bytes} {bytes:?}"), "a 'a'");
        assert!(Location::from("z") < Location::from("s3://a/a") && Location::from("s3://a/a") < bytes);
    }

    #[test]
    fn secrets_in_a_url_are_not_shown() {
        let files =
            crate::Files::from(["https://me:pass@host/a.csv?sig=abc", "https://me:pass@host/b.csv?sig=def"]);
        let data = crate::text_lines(files.clone()).batch(2);
        let url = files.iter().next().unwrap();
        let failed = url.io_error(std::io::Error::other("403 for https://me:pass@host/a.csv?sig=abc"));
        let mut shown = vec![
            format!("{url} {url:?} {files:?}"),
            data.explain(),
            format!("{data:?}"),
            format!("{:?}", crate::Csv::files(files.clone())),
            failed.to_string(),
            format!("{failed:?}"),
            crate::Files::glob("https://me:pass@host/a***?sig=abc").unwrap_err().to_string(),
        ];
        // With the feature, these would send a request to the host.
        if cfg!(not(feature = "object-store")) {
            shown.push(url.open().err().map_or(String::new(), |error| format!("{error} {error:?}")));
            shown.push(crate::Files::glob("https://me:pass@host/*.csv?sig=abc").unwrap_err().to_string());
            shown.push(data.iter().next().unwrap().unwrap_err().to_string());
        }
        for text in shown {
            assert!(!text.contains("pass") && !text.contains("sig=") && !text.contains("abc"), "{text}");
        }
        // The names that are read are the given ones.
        let names: Vec<_> = Dataset::list_files(files).iter().map(Result::unwrap).collect();
        assert_eq!(names[1], "https://me:pass@host/b.csv?sig=def");
    }

    // The bytes of a pipe come only once. A second reader would find the rest of them, or wait forever.
    // INV-24
    #[cfg(unix)]
    #[test]
    fn pipes_are_refused_by_every_format() {
        distribute_testing::watched(|| {
            let folder = tempfile::tempdir().unwrap();
            let pipe = folder.path().join("pipe");
            rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            let link = folder.path().join("link");
            std::os::unix::fs::symlink(&pipe, &link).unwrap();
            let first = |error: Option<Error>| error.unwrap().to_string();
            for path in [&pipe, &link] {
                let features = crate::example::Features::new();
                let errors = [
                    first(Location::from(path).open().err()),
                    first(crate::Csv::file(path).features().err()),
                    first(crate::text_lines(path).iter().find_map(Result::err)),
                    first(crate::TfRecord::new(path).records().iter().find_map(Result::err)),
                    first(
                        crate::TfRecord::new(path).examples(&features).unwrap().iter().find_map(Result::err),
                    ),
                    first(crate::TfRecordReader::open(path, Default::default()).err()),
                    first(crate::numpy::read_npy(path).err()),
                    first(crate::numpy::read_npz(path).err()),
                    first(Dataset::range(2).cache_to(path).iter().find_map(Result::err)),
                    #[cfg(feature = "webdataset")]
                    first(crate::webdataset::samples(path).iter().find_map(Result::err)),
                    #[cfg(feature = "parquet")]
                    first(crate::parquet::rows(path, ["x"]).iter().find_map(Result::err)),
                ];
                for error in errors {
                    assert!(error.contains("this is a pipe") && error.contains("Location::bytes"), "{error}");
                    assert!(error.contains(&path.display().to_string()), "{error}");
                }
            }
            // A pipe after the first file is detected at its turn.
            let files = crate::Files::from([Location::bytes("a", "x\n1\n"), Location::from(&pipe)]);
            let error = crate::Csv::files(files).features().unwrap().iter().nth(1).unwrap().unwrap_err();
            assert!(error.to_string().contains("this is a pipe"), "{error}");
        });
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error_that_names_it() {
        let error = Location::from("no/such.file").open().err().unwrap();
        assert!(error.to_string().starts_with("cannot read 'no/such.file': "), "{error}");
    }

    #[cfg(not(feature = "object-store"))]
    #[test]
    fn a_url_without_the_feature_names_the_feature() {
        let error = Location::from("s3://bucket/key").open().err().unwrap();
        let expected = "'s3://bucket/key' needs the cargo feature `object-store` of distribute-data";
        assert_eq!(error.to_string(), expected);
    }
}
