//! Objects behind URLs, read ahead on a thread.
//!
//! Settings such as keys and regions come from the environment, as each cloud's own tools name them: `AWS_…`,
//! `GOOGLE_…`, `AZURE_…`.

use super::FileState;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use std::future::Future;
use std::io::{Cursor, Error, ErrorKind, Read, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use url::Url;

/// What is asked for at once. One request for a whole object would stay open for as long as its consumer takes to
/// work through it, and stores close those that stand still.
const PIECE: u64 = 8 * 1024 * 1024;

/// How many pieces wait for the consumer, apart from the one that it reads and the one that is on its way.
const AHEAD: usize = 1;

/// How long a request may take, with its repetitions after failures that pass.
const DEADLINE: Duration = Duration::from_secs(60);

/// Reads an object from its first byte on. The first piece is on its way when this returns.
pub(super) fn open(url: &str) -> Result<Box<dyn Read + Send>> {
    let (store, path) = find(url)?;
    Ok(Box::new(Pieces::start(store, path, PIECE)?))
}

/// The names of the objects right below a folder, and what the listing tells of each.
pub(super) fn list(folder: &str) -> Result<Vec<(String, FileState)>> {
    let (store, path) = find(folder)?;
    let found = within(&runtime()?, store.list_with_delimiter(Some(&path)))?;
    let named = |object: &ObjectMeta| {
        let state = FileState::of_object(object.size, object.e_tag.as_deref());
        Some((object.location.filename()?.to_string(), state))
    };
    Ok(found.objects.iter().filter_map(named).collect())
}

fn find(url: &str) -> Result<(Box<dyn ObjectStore>, Path)> {
    let url = Url::parse(url).map_err(|e| Error::new(ErrorKind::InvalidInput, e))?;
    let settings = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_ascii_lowercase();
        let ours = ["aws_", "google_", "azure_"].iter().any(|cloud| name.starts_with(cloud));
        Some((name, value.into_string().ok()?)).filter(|_| ours)
    });
    install_cryptography();
    Ok(object_store::parse_url_opts(&url, settings)?)
}

/// Makes ring the cryptography of the process's TLS, unless the program has chosen another: an HTTP client of `reqwest`
/// panics where there is none.
fn install_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error says that another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Waits for one request.
fn within<T>(runtime: &Runtime, request: impl Future<Output = object_store::Result<T>>) -> Result<T> {
    // The timer belongs to the runtime, so it is made inside.
    match runtime.block_on(async { tokio::time::timeout(DEADLINE, request).await }) {
        Ok(result) => Ok(result?),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("no answer within {DEADLINE:?}"))),
    }
}

/// An object's bytes in pieces that a thread asks for ahead of the reader.
///
/// Neither waits for longer than the other lives or [`DEADLINE`]: the reader's wait ends when the thread drops its end
/// of the channel, after the object's end or an error; the thread's wait for a place ends when the reader is
/// dropped.
struct Pieces {
    receiver: Receiver<Result<bytes::Bytes>>,
    piece: Cursor<bytes::Bytes>,
    /// The empty piece behind the last one has come.
    ended: bool,
}

impl Pieces {
    fn start(store: Box<dyn ObjectStore>, path: Path, piece: u64) -> Result<Self> {
        let (sender, receiver) = sync_channel(AHEAD);
        let request = move || {
            if let Err(error) = request(store.as_ref(), &path, piece, &sender) {
                let _ = sender.send(Err(error));
            }
        };
        std::thread::Builder::new().name("data-object".into()).spawn(request)?;
        Ok(Self { receiver, piece: Cursor::default(), ended: false })
    }
}

/// Sends an object piece by piece, until its end or the reader's.
fn request(
    store: &dyn ObjectStore,
    path: &Path,
    piece: u64,
    sender: &SyncSender<Result<bytes::Bytes>>,
) -> Result<()> {
    let runtime = runtime()?;
    let object = within(&runtime, store.head(path))?;
    let mut next = 0;
    while next < object.size {
        let end = object.size.min(next.saturating_add(piece));
        let options = GetOptions {
            // An object in one piece can be had from servers, too, that know no ranges.
            range: (end - next < object.size).then_some(GetRange::Bounded(next..end)),
            // All pieces are of one version, where its tag says that bytes are the same (a weak one does not).
            if_match: object.e_tag.clone().filter(|tag| !tag.starts_with("W/")),
            ..Default::default()
        };
        let bytes = within(&runtime, async { store.get_opts(path, options).await?.bytes().await })?;
        if bytes.len() as u64 != end - next {
            let found = format!("asked for bytes {next} to {end}, received {}", bytes.len());
            return Err(Error::new(ErrorKind::UnexpectedEof, found));
        }
        if sender.send(Ok(bytes)).is_err() {
            return Ok(());
        }
        next = end;
    }
    // A thread that died is not taken for an object's end.
    let _ = sender.send(Ok(bytes::Bytes::new()));
    Ok(())
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        loop {
            let read = self.piece.read(buffer)?;
            if read > 0 || buffer.is_empty() || self.ended {
                return Ok(read);
            }
            // This wait ends with the thread, see above.
            match self.receiver.iter().next() {
                Some(piece) => self.piece = Cursor::new(piece?),
                None => {
                    return Err(Error::new(ErrorKind::BrokenPipe, "the thread that reads ahead has died"));
                }
            }
            self.ended = self.piece.get_ref().is_empty();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Compression, Csv, Files, Location};
    use distribute_testing::watched;
    use object_store::memory::InMemory;

    fn stored(bytes: &[u8]) -> (InMemory, Path) {
        let (store, path) = (InMemory::new(), Path::from("folder/object"));
        within(&runtime().unwrap(), store.put(&path, bytes.to_vec().into())).unwrap();
        (store, path)
    }

    #[test]
    fn a_client_of_tls_needs_no_choice_of_the_program() {
        for url in ["https://localhost/object", "s3://bucket/object", "gs://bucket/object"] {
            find(url).unwrap();
        }
    }

    #[test]
    fn pieces_of_any_size_are_the_object() {
        watched(|| {
            let bytes: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
            for len in [0, 1, 999, 1000, 1001, 4000] {
                let (store, path) = stored(&bytes[..len]);
                let mut read = Vec::new();
                Pieces::start(Box::new(store), path, 1000).unwrap().read_to_end(&mut read).unwrap();
                assert_eq!(read, &bytes[..len]);
            }
        });
    }

    // INV-3
    #[test]
    fn dropping_the_reader_ends_the_thread() {
        watched(|| {
            let (store, path) = stored(&[7; 1000]);
            let (sender, receiver) = sync_channel(AHEAD);
            let thread = std::thread::spawn(move || request(&store, &path, 1, &sender));
            assert_eq!(receiver.iter().next().unwrap().unwrap(), &[7][..]);
            drop(receiver);
            thread.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_thread_that_dies_is_an_error_and_no_end() {
        watched(|| {
            let (sender, receiver) = sync_channel(AHEAD);
            sender.send(Ok(bytes::Bytes::from_static(b"a"))).unwrap();
            drop(sender);
            let mut pieces = Pieces { receiver, piece: Cursor::default(), ended: false };
            let error = pieces.read_to_end(&mut Vec::new()).unwrap_err();
            assert_eq!(error.to_string(), "the thread that reads ahead has died");
        });
    }

    #[test]
    fn urls_of_files_are_read_globbed_and_unpacked_as_paths_are() {
        watched(|| {
            let folder = tempfile::tempdir().unwrap();
            for name in ["b.csv", "a.csv", "c.txt"] {
                std::fs::write(folder.path().join(name), format!("{name}\n1\n")).unwrap();
            }
            let url = Url::from_directory_path(folder.path()).unwrap().to_string();
            let files = Files::glob(&format!("{url}*.csv")).unwrap();
            assert_eq!(files, Files::from([format!("{url}a.csv"), format!("{url}b.csv")]));
            let mut text = String::new();
            let first = files.iter().next().unwrap();
            Compression::Auto.open(first).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(text, "a.csv\n1\n");
            assert_eq!(Csv::file(first).features().unwrap().iter().count(), 1);
            let error = Files::glob(&format!("{url}*.npy")).unwrap_err();
            assert_eq!(error.to_string(), format!("no file matches '{url}*.npy'"));
        });
    }

    #[test]
    fn errors_name_the_url() {
        watched(|| {
            for url in ["file:///no/such/file", "s3://", "nonsense://host/key"] {
                let location = Location::from(url);
                let error = Compression::Auto.open(&location).err().unwrap();
                assert!(error.to_string().starts_with(&format!("cannot read '{url}': ")), "{error}");
            }
        });
    }
}
