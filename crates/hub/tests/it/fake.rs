//! A hub with one repository, and a server with its large files.

use crate::server::{Reply, Request, Server};
use distribute_hub::{Error, Hub, Repository};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const ID: &str = "org/name";
pub const TOKEN: &str = "hf_secret";

type Files = BTreeMap<(String, String), (Vec<u8>, bool)>;
type Hook = Box<dyn Fn(&Request, Reply) -> Reply + Send>;

/// The state of both servers.
#[derive(Default)]
struct State {
    /// Files by commit and name; `true` for large ones.
    files: Mutex<Files>,
    /// The commit of the branch main.
    main: Mutex<String>,
    /// The function that changes the answers of both servers. Paths at the server of large files begin with `/cdn/`.
    hook: Mutex<Option<Hook>>,
}

/// The servers, and a cache.
pub struct Fake {
    pub hub: Server,
    pub cdn: Server,
    pub cache: tempfile::TempDir,
    state: Arc<State>,
}

impl Fake {
    /// Starts a hub whose branch main has the given files; `true` for large ones.
    pub fn new(files: &[(&str, &[u8], bool)]) -> Self {
        let state = Arc::new(State::default());
        let mine = state.clone();
        let cdn = Server::start(move |request| hooked(&mine, request, of_cdn(&mine, request)));
        let (mine, address) = (state.clone(), cdn.address);
        let hub = Server::start(move |request| {
            hooked(&mine, request, of_hub(&mine, request, &format!("http://{address}")))
        });
        let fake = Self { hub, cdn, cache: tempfile::tempdir().unwrap(), state };
        fake.commit(1, files);
        fake
    }

    /// Moves the branch main to another commit.
    pub fn commit(&self, number: u64, files: &[(&str, &[u8], bool)]) -> String {
        let commit = format!("{number:040x}");
        for (name, bytes, is_large) in files {
            let key = (commit.clone(), (*name).to_string());
            self.state.files.lock().unwrap().insert(key, (bytes.to_vec(), *is_large));
        }
        self.state.main.lock().unwrap().clone_from(&commit);
        commit
    }

    /// Changes all further answers of both servers with `hook`, which gets each request and the usual answer.
    pub fn answers(&self, hook: impl Fn(&Request, Reply) -> Reply + Send + 'static) {
        *self.state.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn settings(&self) -> Hub {
        // Settings of the environment of the test are overridden.
        let hub =
            Hub::new().unwrap().cache(self.cache.path()).offline(false).timeout(Duration::from_secs(20));
        hub.endpoint(&format!("http://{}", self.hub.address)).unwrap().token(Some(TOKEN)).unwrap()
    }

    pub fn model(&self) -> Repository {
        self.settings().model(ID)
    }

    /// Returns the path of a file or folder of the repository in the cache.
    pub fn at(&self, path: &str) -> PathBuf {
        self.cache.path().join("models--org--name").join(path)
    }

    /// Returns the range of each request for a large file since the last call; `all` if the request has none.
    pub fn large(&self) -> Vec<String> {
        let requests = self.cdn.requests();
        requests.iter().map(|request| request.header("range").unwrap_or("all").to_string()).collect()
    }
}

pub fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 251) as u8).collect()
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub fn git(bytes: &[u8]) -> String {
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    hex(digest(&SHA1_FOR_LEGACY_USE_ONLY, &blob).as_ref())
}

/// Returns the text of an error, which never contains the token.
pub fn text<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    let error = result.unwrap_err();
    let text = error.to_string();
    assert!(!format!("{text} {error:?}").contains(TOKEN), "{text}");
    text
}

fn hooked(state: &State, request: &Request, reply: Reply) -> Reply {
    match &*state.hook.lock().unwrap() {
        Some(hook) => hook(request, reply),
        None => reply,
    }
}

/// Answers like huggingface.co: small files by way of a redirect on the hub, large ones by way of one to another
/// server.
fn of_hub(state: &State, request: &Request, cdn: &str) -> Reply {
    let absent = |code: &str| Reply::new(404).with("X-Error-Code", code).with("X-Error-Message", "Not here");
    let path = request.path.split('?').next().unwrap();
    let (route, rest) =
        match (path.strip_prefix("/org/name/resolve/"), path.strip_prefix("/api/resolve-cache/")) {
            (Some(rest), _) => ("resolve", rest),
            (_, Some(rest)) => ("cache", rest),
            _ => return absent("RepoNotFound"),
        };
    let (revision, name) = rest.split_once('/').unwrap();
    let main = state.main.lock().unwrap().clone();
    let commit = if revision == "main" { main } else { revision.to_string() };
    let files = state.files.lock().unwrap();
    if !files.keys().any(|(known, _)| *known == commit) {
        return absent("RevisionNotFound");
    }
    let Some((bytes, is_large)) = files.get(&(commit.clone(), name.to_string())) else {
        return absent("EntryNotFound").with("X-Repo-Commit", commit);
    };
    let linked = |reply: Reply, hash: String| {
        let reply = reply.with("X-Repo-Commit", &commit).with("ETag", "\"of-the-redirect\"");
        reply.with("X-Linked-Etag", format!("\"{hash}\"")).with("X-Linked-Size", bytes.len().to_string())
    };
    match (is_large, route) {
        (true, _) => {
            let hash = sha256(bytes);
            let location = format!("{cdn}/cdn/{commit}/{name}?signature=secret");
            linked(Reply::new(302).body("Found"), hash).with("Location", location)
        }
        (false, "resolve") => {
            let location = format!("/api/resolve-cache/{commit}/{name}?a=b");
            linked(Reply::new(307).body("Temporary Redirect"), git(bytes)).with("Location", location)
        }
        (false, _) => {
            let reply = Reply::new(200).body(bytes.clone()).with("X-Repo-Commit", &commit);
            reply.with("ETag", format!("\"{}\"", git(bytes)))
        }
    }
}

fn of_cdn(state: &State, request: &Request) -> Reply {
    assert_eq!(request.header("authorization"), None, "the token is not for this server");
    let path = request.path.split('?').next().unwrap();
    let (commit, name) = path.strip_prefix("/cdn/").unwrap().split_once('/').unwrap();
    let files = state.files.lock().unwrap();
    let Some((bytes, _)) = files.get(&(commit.to_string(), name.to_string())) else { return Reply::new(404) };
    let Some(range) = request.header("range") else { return Reply::new(200).body(bytes.clone()) };
    let start: usize = range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap();
    if start >= bytes.len() {
        return Reply::new(416);
    }
    let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
    Reply::new(206).with("Content-Range", range).body(&bytes[start..])
}
