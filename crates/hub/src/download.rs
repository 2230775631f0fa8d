//! One file: received into a partial file, resumed, verified, renamed.

// - INV-24: a blob is renamed when its hash is right. The partial file is opened without following a link. Tests:
//   `hub/tests/it/downloads.rs`.

use crate::attempts::{ATTEMPTS, Attempts};
use crate::client::Client;
use crate::digest::{Hash, Hasher};
use crate::error::{Error, Result, shown};
use crate::origin::display;
use distribute_cluster::Stopwatch;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;
use ureq::Body;
use ureq::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE};
use ureq::http::{HeaderName, Response, StatusCode, Uri};

const BUFFER: usize = 256 << 10;
/// The number of bytes after which an attempt counts as progress, so that the limit of attempts begins again.
const PROGRESS: u64 = 1 << 20;
/// The minimum number of bytes that must arrive within each timeout.
const LEAST: u64 = 64 << 10;

/// A file to download.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) url: Uri,
    pub(crate) hash: Hash,
    pub(crate) size: u64,
    pub(crate) blob: PathBuf,
    pub(crate) partial: PathBuf,
    pub(crate) timeout: Duration,
}

/// Downloads a file to its blob. Resumes a partial download if there is one. The caller must hold the lock of the
/// file.
pub(crate) fn download(client: &Client, target: &Target) -> Result<()> {
    let mut partial = Partial::open(target)?;
    // What an earlier process has left may be damaged. Then all of it is downloaded again, once.
    let mut is_resumed = partial.size > 0;
    tracing::info!(
        "downloading {}: {} of {} bytes are there already",
        display(&target.url),
        partial.size,
        target.size
    );
    loop {
        let (mut attempts, mut furthest) = (Attempts::new(ATTEMPTS, target.timeout), partial.size);
        while partial.size < target.size {
            let result = partial.receive(client);
            // A server that begins again each time makes no progress.
            if partial.size >= furthest.saturating_add(PROGRESS) {
                furthest = partial.size;
                attempts.progressed();
            }
            if let Err(error) = result {
                attempts.after(error)?;
            }
        }
        let found = partial.hash();
        if found == target.hash {
            return partial.finish();
        }
        if !is_resumed {
            let removed = fs::remove_file(&target.partial);
            removed.map_err(Error::io("removing", &target.partial))?;
            return Err(Error::Hash {
                url: display(&target.url),
                algorithm: target.hash.algorithm(),
                expected: target.hash.text().into(),
                found: found.text().into(),
            });
        }
        is_resumed = false;
        partial.restart()?;
    }
}

/// A file that is being downloaded.
struct Partial<'a> {
    target: &'a Target,
    file: File,
    size: u64,
    hasher: Hasher,
}

impl<'a> Partial<'a> {
    /// Opens or creates the partial file, locks it, and computes the hash of its bytes. Discards them if there are too
    /// many.
    fn open(target: &'a Target) -> Result<Self> {
        let path = &target.partial;
        // Others who share the cache may read it: its mode is the default one.
        let file = match OpenOptions::new().read(true).write(true).create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                distribute_files::open_own(path, true)
            }
            opened => opened,
        };
        let file = file.map_err(Error::io("opening", path))?;
        match file.try_lock() {
            // Its lock file was removed while it was held.
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Busy { lock: path.clone(), waited: Duration::ZERO });
            }
            // Without locks, the lock file was refused before.
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        let mut partial = Self { target, file, size: 0, hasher: target.hash.hasher(target.size) };
        let length = partial.file.metadata().map_err(Error::io("opening", path))?.len();
        if length > target.size {
            partial.restart()?;
        } else {
            let mut buffer = vec![0; BUFFER];
            loop {
                let read = partial.file.read(&mut buffer).map_err(Error::io("reading", path))?;
                if read == 0 {
                    break;
                }
                partial.hasher.update(&buffer[..read]);
                partial.size += read as u64;
            }
        }
        Ok(partial)
    }

    /// Discards all bytes that have been received.
    fn restart(&mut self) -> Result<()> {
        let path = &self.target.partial;
        self.file.set_len(0).map_err(Error::io("writing", path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(Error::io("writing", path))?;
        (self.size, self.hasher) = (0, self.target.hash.hasher(self.target.size));
        Ok(())
    }

    /// Receives the rest of the file, or as much as arrives before an error. Discards the received bytes if the server
    /// does not continue after them.
    fn receive(&mut self, client: &Client) -> Result<()> {
        let response = match client.get(&self.target.url, self.size) {
            // The server has fewer bytes than this.
            Err(Error::Status { status: 416, .. }) if self.size > 0 => return self.restart(),
            response => response?,
        };
        self.check(&response)?;
        if response.status() != StatusCode::PARTIAL_CONTENT && self.size > 0 {
            self.restart()?;
        }
        let url = || display(&self.target.url);
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; BUFFER];
        let (mut window, mut arrived) = (Stopwatch::start(), 0);
        loop {
            let read = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let (size, all) = (self.size, self.target.size);
                    let reason = format!("after {size} of {all} bytes: {}", shown(&error.to_string()));
                    return Err(Error::Network { url: url(), reason });
                }
            };
            if read as u64 > self.target.size - self.size {
                let found = "more bytes".into();
                return Err(Error::Response { url: url(), expected: "a body of the announced size", found });
            }
            self.file.write_all(&buffer[..read]).map_err(Error::io("writing", &self.target.partial))?;
            self.hasher.update(&buffer[..read]);
            self.size += read as u64;
            arrived += read as u64;
            if window.elapsed() >= self.target.timeout {
                if arrived < LEAST && self.size < self.target.size {
                    let reason = format!("only {arrived} bytes arrived in {:?}", self.target.timeout);
                    return Err(Error::Network { url: url(), reason });
                }
                (window, arrived) = (Stopwatch::start(), 0);
            }
        }
        if self.size < self.target.size {
            let reason = format!("the response ended after {} of {} bytes", self.size, self.target.size);
            return Err(Error::Network { url: url(), reason });
        }
        Ok(())
    }

    /// Checks that a response has the bytes that were requested, or the complete file.
    fn check(&self, response: &Response<Body>) -> Result<()> {
        let header = |name: HeaderName| {
            response
                .headers()
                .get(name)
                .map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_string())
        };
        let refused = |expected, found: Option<String>| {
            let found = found.map_or("none".into(), |found| format!("{:?}", shown(&found)));
            Err(Error::Response { url: display(&self.target.url), expected, found })
        };
        let encoding = header(CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity"));
        if encoding.is_some() {
            return refused("a file without Content-Encoding", encoding);
        }
        let (size, all) = (self.size, self.target.size);
        let expected = match response.status() {
            StatusCode::OK => all,
            StatusCode::PARTIAL_CONTENT => {
                let range = header(CONTENT_RANGE);
                if range.as_deref() != Some(&format!("bytes {size}-{}/{all}", all - 1)) {
                    return refused("the rest of a file of the announced size in Content-Range", range);
                }
                all - size
            }
            other => return refused("the status 200 or 206", Some(other.to_string())),
        };
        match header(CONTENT_LENGTH) {
            Some(length) if length != expected.to_string() => {
                refused("the announced size, or the rest of it, in Content-Length", Some(length))
            }
            _ => Ok(()),
        }
    }

    fn hash(&mut self) -> Hash {
        std::mem::replace(&mut self.hasher, self.target.hash.hasher(self.target.size)).finish()
    }

    /// Renames the partial file to the name of the blob.
    fn finish(self) -> Result<()> {
        self.file.sync_all().map_err(Error::io("writing", &self.target.partial))?;
        fs::rename(&self.target.partial, &self.target.blob)
            .map_err(Error::io("renaming", &self.target.partial))
    }
}
