//! The reading of objects behind URLs, with a thread that requests them early.
//!
//! Settings such as keys and regions come from the environment variables that each cloud's own tools use:
//! `AWS_…`, `GOOGLE_…`, `AZURE_…`.

use super::FileState;
use super::http::{AsGiven, without_user};
use futures_util::StreamExt;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{ClientConfigKey, GetOptions, GetRange, ObjectMeta, ObjectStore};
use std::future::Future;
use std::io::{Cursor, Error, ErrorKind, Read, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use url::{Position, Url};

/// The number of bytes that one request reads. A single request for a complete object would stay open while its
/// consumer processes it, and stores close idle connections.
const PIECE: u64 = 8 * 1024 * 1024;

/// The number of received chunks that may wait for the consumer, in addition to the current one and the one being
/// requested.
const AHEAD: usize = 1;

/// The maximum time for a request, including retries after transient failures.
const DEADLINE: Duration = Duration::from_secs(60);

/// The maximum time for a listing, which needs one request per thousand names, one after the other.
const LISTING: Duration = Duration::from_secs(30 * 60);

/// Opens an object, and returns a reader of its bytes. The first chunk is already being requested when this
/// returns.
pub(super) fn open(url: &str) -> Result<Box<dyn Read + Send>> {
    let (store, path) = find(url)?;
    Ok(Box::new(Pieces::start(store, path, PIECE)?))
}

/// Lists the objects directly in a folder. Returns their names, without URL escapes, with their sizes and tags.
pub(super) fn list(folder: &str) -> Result<Vec<(String, FileState)>> {
    let (store, path) = find(folder)?;
    let found = within(&runtime()?, LISTING, store.list_with_delimiter(Some(&path)))?;
    let named = |object: &ObjectMeta| {
        // An object with the name of the folder itself marks the folder, and is no file in it.
        let mut below = object.location.prefix_match(&path)?;
        let name = below.next().filter(|_| below.next().is_none())?.as_ref().to_string();
        Some((name, FileState::of_object(object.size, object.e_tag.as_deref())))
    };
    Ok(found.objects.iter().filter_map(named).collect())
}

/// The settings of HTTP clients for web servers. A server without range requests sends the complete object, and the
/// response lasts until the consumer has read it. There is therefore no deadline for the complete response, but one for
/// its next bytes. (The setting cannot express "none".)
const WEB: [(ClientConfigKey, &str); 2] =
    [(ClientConfigKey::Timeout, "10years"), (ClientConfigKey::ReadTimeout, "30s")];

fn find(url: &str) -> Result<(Box<dyn ObjectStore>, Path)> {
    let url = Url::parse(url).map_err(|e| Error::new(ErrorKind::InvalidInput, e))?;
    let is_http = matches!(url.scheme(), "http" | "https");
    let is_signed = url.query().is_some() || !url.username().is_empty() || url.password().is_some();
    install_cryptography();
    // An explicit http:// has to be allowed by a setting.
    let plain = (url.scheme() == "http").then_some((ClientConfigKey::AllowHttp, "true"));
    let web = WEB.into_iter().chain(plain);
    // A signed URL is requested exactly as it was given, on any host.
    if is_http && is_signed {
        let store = HttpBuilder::new()
            .with_url(&without_user(&url)[..Position::BeforePath])
            .with_http_connector(AsGiven::new(&url));
        let store = web.into_iter().fold(store, |store, (key, value)| store.with_config(key, value));
        return Ok((Box::new(store.build()?), Path::default()));
    }
    let settings = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_ascii_lowercase();
        let ours = ["aws_", "google_", "azure_"].iter().any(|cloud| name.starts_with(cloud));
        Some((name, value.into_string().ok()?)).filter(|_| ours)
    });
    let web =
        web.into_iter().filter(|_| is_http).map(|(key, value)| (key.as_ref().to_string(), value.to_string()));
    Ok(object_store::parse_url_opts(&url, settings.chain(web))?)
}

/// Makes ring the default TLS cryptography of the process, unless the program has chosen another. Without a
/// default, an HTTP client of `reqwest` panics.
fn install_cryptography() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Waits until a request completes, or fails after `time`.
fn within<T>(
    runtime: &Runtime,
    time: Duration,
    request: impl Future<Output = object_store::Result<T>>,
) -> Result<T> {
    // The timer belongs to the runtime, so it is created inside it.
    match runtime.block_on(async { tokio::time::timeout(time, request).await }) {
        Ok(result) => Ok(result?),
        Err(_) => Err(Error::new(ErrorKind::TimedOut, format!("no answer within {time:?}"))),
    }
}

/// A reader of an object. A thread requests its chunks before they are read.
///
/// All waits are bounded. The reader's wait ends when the thread drops its end of the channel, after the end of
/// the object or an error. Each request of the thread has a [`DEADLINE`]. The thread's wait for a free slot ends
/// when the reader is dropped.
struct Pieces {
    receiver: Receiver<Result<bytes::Bytes>>,
    piece: Cursor<bytes::Bytes>,
    /// Whether the empty chunk that marks the end has been received.
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

/// Requests an object chunk by chunk and sends the chunks, until the end of the object or until the reader is dropped.
/// If the first request fails, ranges may not be supported, so the object is requested in a single response. This is
/// not tried if the object does not exist or the deadline has passed.
fn request(
    store: &dyn ObjectStore,
    path: &Path,
    piece: u64,
    sender: &SyncSender<Result<bytes::Bytes>>,
) -> Result<()> {
    let runtime = runtime()?;
    // The first chunk also has the size of the object. A separate request for the size may be forbidden or
    // get no answer.
    let asked = |range: Range<u64>, tag: Option<String>| {
        // All chunks must be of one version, if the tag guarantees equal bytes (a weak tag does not).
        let if_match = tag.filter(|tag| !tag.starts_with("W/"));
        let options = GetOptions { range: Some(GetRange::Bounded(range)), if_match, ..Default::default() };
        within(&runtime, DEADLINE, async {
            let found = store.get_opts(path, options).await?;
            let object = found.meta.clone();
            Ok((found.bytes().await?, object))
        })
    };
    let (mut bytes, object) = match asked(0..piece, None) {
        Ok(first) => first,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::TimedOut) => return Err(error),
        // An object without bytes has no ranges, and some servers support none.
        Err(_) => return request_whole(&runtime, store, path, sender),
    };
    let mut next = 0u64;
    loop {
        let end = object.size.min(next.saturating_add(piece));
        if bytes.len() as u64 != end - next {
            let found = format!("asked for bytes {next} to {end}, received {}", bytes.len());
            return Err(Error::new(ErrorKind::UnexpectedEof, found));
        }
        if !bytes.is_empty() && sender.send(Ok(bytes)).is_err() {
            return Ok(());
        }
        next = end;
        if next >= object.size {
            break;
        }
        let following = next..object.size.min(next.saturating_add(piece));
        bytes = asked(following, object.e_tag.clone())?.0;
    }
    // The empty chunk distinguishes the object's end from a thread that died.
    let _ = sender.send(Ok(bytes::Bytes::new()));
    Ok(())
}

/// Requests an object in a single response, and sends its bytes. Waiting for the next bytes has the deadline of a
/// request.
fn request_whole(
    runtime: &Runtime,
    store: &dyn ObjectStore,
    path: &Path,
    sender: &SyncSender<Result<bytes::Bytes>>,
) -> Result<()> {
    let found = within(runtime, DEADLINE, store.get_opts(path, GetOptions::default()))?;
    let (size, mut stream) = (found.meta.size, found.into_stream());
    let mut received = 0;
    while let Some(bytes) = within(runtime, DEADLINE, async { stream.next().await.transpose() })? {
        received += bytes.len() as u64;
        if !bytes.is_empty() && sender.send(Ok(bytes)).is_err() {
            return Ok(());
        }
    }
    if received != size {
        let found = format!("the server announced {size} bytes and sent {received}");
        return Err(Error::new(ErrorKind::UnexpectedEof, found));
    }
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
            // This wait ends with the thread, see [`Pieces`].
            match self.receiver.iter().next() {
                Some(piece) => self.piece = Cursor::new(piece?),
                None => {
                    return Err(Error::new(
                        ErrorKind::BrokenPipe,
                        "the thread that reads ahead has panicked",
                    ));
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
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    fn stored(bytes: &[u8]) -> (InMemory, Path) {
        let (store, path) = (InMemory::new(), Path::from("folder/object"));
        within(&runtime().unwrap(), DEADLINE, store.put(&path, bytes.to_vec().into())).unwrap();
        (store, path)
    }

    #[test]
    fn a_client_of_tls_needs_no_choice_of_the_program() {
        for url in ["https://localhost/object", "s3://bucket/object", "gs://bucket/object"] {
            find(url).unwrap();
        }
    }

    #[test]
    fn an_answer_of_a_web_server_may_last_and_its_user_is_not_shown() {
        for url in [
            "http://localhost/object",
            "http://me:secret@localhost/object?sig=hidden",
            "https://localhost/object",
        ] {
            let store = format!("{:?}", find(url).unwrap().0);
            assert!(store.contains("timeout: Some(Deferred(\"10years\"))"), "{store}");
            assert!(store.contains("read_timeout: Some(Deferred(\"30s\"))"), "{store}");
            assert!(!store.contains("secret") && !store.contains("hidden"), "{store}");
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
            assert_eq!(error.to_string(), "the thread that reads ahead has panicked");
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

    /// Starts an HTTP server of one object. Returns its address, and a channel that receives the request line and the
    /// `authorization` header of each request. `ranges` is whether the server supports range requests.
    fn server(ranges: bool, body: &'static [u8]) -> (String, Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (sender, asked) = std::sync::mpsc::channel();
        // The thread exits with the process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines: Vec<String> = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(std::result::Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let header = |name: &str| {
                    let value = lines.iter().find_map(|line| line.strip_prefix(name));
                    value.map(|value| value.trim().to_string())
                };
                let range = header("range:").filter(|_| ranges);
                let _ = sender.send(format!("{} {:?}", lines[0], header("authorization:")));
                let part = range.as_ref().and_then(|range| {
                    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
                    let start = start.parse::<usize>().ok()?;
                    Some((start, body.get(start..body.len().min(end.parse::<usize>().ok()? + 1))?))
                });
                let (status, bytes) = match (lines[0].starts_with("GET"), range, part) {
                    (false, ..) => ("405 Method Not Allowed".to_string(), &b""[..]),
                    (true, Some(_), Some((start, part))) if !part.is_empty() => {
                        let end = start + part.len() - 1;
                        (format!("206 Partial\r\ncontent-range: bytes {start}-{end}/{}", body.len()), part)
                    }
                    (true, Some(_), _) => ("416 Range".to_string(), &b""[..]),
                    (true, None, _) => ("200 OK".to_string(), body),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    bytes.len()
                );
                stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(bytes)).unwrap();
            }
        });
        (host, asked)
    }

    #[test]
    fn http_is_read_as_it_was_given_with_ranges_and_without_and_by_get_alone() {
        watched(|| {
            for (ranges, body) in
                [(true, &b"x,y\n1,2\n"[..]), (false, b"x,y\n1,2\n"), (true, b""), (false, b"")]
            {
                let (host, asked) = server(ranges, body);
                let url = format!("http://me:pass%20word@{host}/a%20b/c+d%2Fe.csv?sig=a%2Fb&x");
                let mut read = Vec::new();
                Location::from(url).open().unwrap().read_to_end(&mut read).unwrap();
                assert_eq!(read, body);
                let asked: Vec<String> = asked.try_iter().collect();
                assert_eq!(asked.len(), if ranges && !body.is_empty() { 1 } else { 2 });
                let expected = "GET /a%20b/c+d%2Fe.csv?sig=a%2Fb&x HTTP/1.1 Some(\"Basic bWU6cGFzcyB3b3Jk\")";
                assert!(asked.iter().all(|line| line == expected), "{asked:?}");
            }
            let (host, _asked) = server(true, b"x,y\n1,2\n");
            let (x, y) = Csv::file(format!("http://{host}/a.csv")).labelled("y").unwrap().load().unwrap();
            assert_eq!((x.dims(), y.to_vec::<i64>().unwrap()), (&[1, 1][..], vec![2]));
        });
    }

    #[test]
    fn objects_of_odd_names_are_globbed_and_folder_markers_are_none() {
        watched(|| {
            let folder = tempfile::tempdir().unwrap();
            for name in ["100%.csv", "a#1.csv", "a.csv", "b c.csv", "d?.csv", "e%20f.csv"] {
                std::fs::write(folder.path().join(name), name).unwrap();
            }
            let url = Url::from_directory_path(folder.path()).unwrap().to_string();
            let files = Files::glob(&format!("{url}*.csv")).unwrap();
            let text = |file: &Location| {
                let mut text = String::new();
                file.open().unwrap().read_to_string(&mut text).unwrap();
                text
            };
            let mut texts: Vec<String> = files.iter().map(text).collect();
            texts.sort();
            assert_eq!(texts, ["100%.csv", "a#1.csv", "a.csv", "b c.csv", "d?.csv", "e%20f.csv"]);
            let some =
                |pattern: &str| Files::glob(&format!("{url}{pattern}")).map(|files| files.len()).unwrap_or(0);
            assert_eq!((some("a?1.csv"), some("?.csv"), some("[ab]*.csv"), some("a[#]1.csv")), (1, 1, 3, 1));
            assert_eq!((some("{a,b c}.csv"), some("{a,none}.csv")), (2, 0));
            let states = files.iter().filter_map(Location::listed).count();
            assert_eq!(states, 6);
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
