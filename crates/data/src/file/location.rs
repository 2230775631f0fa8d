//! Where the bytes of a file are.

use crate::{Error, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where a file is: at a local path, in memory under a name, or at a URL (`s3://`, `gs://`, `az://`, `http://`,
/// `https://`, `file://`) behind the feature `object-store`.
///
/// Text with a scheme such as `s3://` is a URL, other text is a path. Nothing is opened before [`open`](Self::open).
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
pub struct Location(Kind);

#[derive(Clone)]
enum Kind {
    Path(PathBuf),
    Bytes(Arc<str>, Arc<dyn AsRef<[u8]> + Send + Sync>),
    Url(String),
}

impl Location {
    /// Bytes in memory, as `include_bytes!` gives them. `name` is what errors call them.
    pub fn bytes(name: impl Into<String>, bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self(Kind::Bytes(name.into().into(), Arc::new(bytes)))
    }

    /// The local path, if it is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Kind::Path(path) => Some(path),
            _ => None,
        }
    }

    /// The raw bytes from the first one on; [`Compression::open`](super::Compression::open) unpacks them. Reads
    /// aren't buffered.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the file cannot be opened, [`Error::Feature`] for a URL where the feature `object-store` is
    /// not enabled.
    pub fn open(&self) -> Result<Box<dyn Read + Send>> {
        match &self.0 {
            Kind::Path(path) => Ok(Box::new(File::open(path).map_err(|e| self.io_error(e))?)),
            Kind::Bytes(_, bytes) => Ok(Box::new(Shared { bytes: bytes.clone(), next: 0 })),
            #[cfg(feature = "object-store")]
            Kind::Url(url) => super::object_store::open(url).map_err(|e| self.io_error(e)),
            #[cfg(not(feature = "object-store"))]
            Kind::Url(_) => Err(Error::Feature { what: self.to_string(), feature: "object-store" }),
        }
    }

    /// What went wrong while this was read.
    pub(crate) fn io_error(&self, source: std::io::Error) -> Error {
        Error::Io { path: self.to_string(), source }
    }

    /// By what locations are told apart and ordered: what they are, their name, and where in memory they are.
    fn key(&self) -> (u8, &OsStr, usize) {
        match &self.0 {
            Kind::Path(path) => (0, path.as_os_str(), 0),
            Kind::Url(url) => (1, url.as_ref(), 0),
            Kind::Bytes(name, bytes) => (2, name.as_ref().as_ref(), Arc::as_ptr(bytes).addr()),
        }
    }
}

/// Whether text is a URL: a scheme of letters, digits and `+-.`, and `://`.
pub(super) fn is_url(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

impl From<String> for Location {
    fn from(text: String) -> Self {
        Self(if is_url(&text) { Kind::Url(text) } else { Kind::Path(text.into()) })
    }
}
impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self(Kind::Path(path))
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
        match &self.0 {
            Kind::Path(path) => path.display().fmt(f),
            Kind::Bytes(name, _) => f.pad(name),
            Kind::Url(url) => f.pad(url),
        }
    }
}
impl std::fmt::Debug for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "'{self}'")
    }
}

/// Bytes in memory are equal where they are the same bytes under the same name.
impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Location {}
/// Paths come before URLs and these before bytes; within them the order is that of their names' bytes.
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

/// Reads bytes that other passes read as well.
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

    #[test]
    fn text_is_a_url_only_with_a_scheme() {
        for url in ["s3://b/k", "https://h/p?q", "file:///p", "memory://"] {
            assert!(is_url(url) && Location::from(url).path().is_none(), "{url}");
        }
        for path in ["", "a/b.csv", "://", "a b://c", "1://", "c:\\a", "/a://b"] {
            assert_eq!(Location::from(path).path(), Some(Path::new(path)));
        }
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
