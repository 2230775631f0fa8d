//! The files with a process's certificates and key.

use super::IdentityError;
use distribute_log::warn_or_stderr;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The maximum number of bytes to read from a file of certificates, keys or a secret. The rest of a longer file is
/// ignored.
const LONGEST: u64 = 1 << 20;

/// Paths of PEM files with the certificates and the key of a process.
///
/// Every worker whose certificate is signed by the CA may join, whatever the name in the certificate is. Use a CA that
/// is only for this job or cluster.
///
/// A certificate can name the tasks of its owner by URIs among its alternative names, such as `distribute:ps/0`. The
/// owner can then act as no other task. The owner of a certificate without such a URI can act as any task.
///
/// Certificates that are restricted by purpose need both purposes, `serverAuth` and `clientAuth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// A file with the certificates of trusted CAs.
    pub ca: PathBuf,
    /// A file with the certificate of this process, followed by any intermediate certificates up to the CA.
    pub certificate: PathBuf,
    /// A file with the private key of the certificate.
    pub key: PathBuf,
}

/// Reads at most [`LONGEST`] bytes of a file that only its owner should be able to access. Logs a warning, once for
/// each path, if the file's group or other users can read or write it.
///
/// # Errors
/// Returns [`IdentityError::File`] if the file cannot be read.
pub(super) fn read_private(path: &Path, what: &'static str) -> Result<Vec<u8>, IdentityError> {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let (bytes, mode) = read_with_mode(path, what)?;
    if is_open_to_others(mode) && WARNED.lock().insert(path.to_owned()) {
        let (mode, path) = (mode & 0o777, path.display());
        warn_or_stderr(|| {
            tracing::warn!(
                "the {what} in {path} can be read by other users (mode {mode:04o}): chmod 600 {path}, and \
                 replace it if another user may have read it"
            );
        });
    }
    Ok(bytes)
}

/// Returns whether the group of the file or other users can read or write it.
fn is_open_to_others(mode: u32) -> bool {
    mode & 0o066 != 0
}

/// Reads at most [`LONGEST`] bytes of a file, and ignores the rest. Returns them and the mode of the file.
///
/// # Errors
/// Returns [`IdentityError::File`] if the file cannot be read. Its message names the contents as `what`.
pub(super) fn read_with_mode(path: &Path, what: &'static str) -> Result<(Vec<u8>, u32), IdentityError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mode = file.metadata()?.permissions().mode();
        file.take(LONGEST).read_to_end(&mut bytes).map(|_| mode)
    });
    let mode = read.map_err(|source| IdentityError::File { what, path: path.to_owned(), source })?;
    Ok((bytes, mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::sync::Arc;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    /// A subscriber that stores the texts of all events.
    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Kept {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn event(&self, event: &Event<'_>) {
            struct Text<'a>(&'a mut String);
            impl tracing::field::Visit for Text<'_> {
                fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                    *self.0 += &format!("{value:?}");
                }
            }
            let mut text = String::new();
            event.record(&mut Text(&mut text));
            self.0.lock().push(text);
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_key_that_others_can_read_is_warned_of_once() {
        let folder = tempfile::tempdir().unwrap();
        let kept = Kept::default();
        for (name, mode, warns) in
            [("a", 0o600, false), ("b", 0o400, false), ("c", 0o640, true), ("d", 0o604, true)]
        {
            let path = folder.path().join(name);
            std::fs::write(&path, "key").unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            tracing::subscriber::with_default(kept.clone(), || {
                assert_eq!(read_private(&path, "private key").unwrap(), b"key");
                read_private(&path, "private key").unwrap();
            });
            let words = std::mem::take(&mut *kept.0.lock());
            assert_eq!(words.len(), usize::from(warns), "{words:?}");
            assert!(words.iter().all(|words| words.contains(&format!("mode {mode:04o}"))), "{words:?}");
        }
    }
}
