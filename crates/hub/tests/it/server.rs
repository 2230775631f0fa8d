//! A small HTTP server, whose answers are determined by a function.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// A request that has arrived.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: BTreeMap<String, String>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// An answer. Headers are sent as they are; Content-Length is added unless there is one, or `without_length`.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// The number of bytes of the body after which the connection ends.
    pub cut: Option<usize>,
    /// Whether nothing more is sent after these bytes, until the client closes the connection.
    pub stalls: bool,
    pub without_length: bool,
}

impl Reply {
    pub fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }
}

/// A server on a port of this machine, until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    log: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (is_over, log) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (over, requests, answer) = (is_over.clone(), log.clone(), Arc::new(answer));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let (requests, answer) = (requests.clone(), answer.clone());
                // Ends with the connection, at the latest after the timeout of a read.
                std::thread::spawn(move || serve(stream.unwrap(), &requests, &*answer));
            }
        });
        Self { address, is_over, thread: Some(thread), log }
    }

    /// Returns the requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().unwrap().join();
    }
}

fn serve(stream: TcpStream, log: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Reply) {
    // Longer than a test may take, so that a client without a timeout of its own is noticed.
    stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(90))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let Some(request) = read(&mut reader) else { return };
    log.lock().unwrap().push(request.clone());
    let reply = answer(&request);
    let mut head = format!("HTTP/1.1 {} .\r\nConnection: close\r\n", reply.status);
    let has_length = reply.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if !has_length && !reply.without_length {
        head.push_str(&format!("Content-Length: {}\r\n", reply.body.len()));
    }
    reply.headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    let body =
        if request.method == "HEAD" { &[] } else { &reply.body[..reply.cut.unwrap_or(reply.body.len())] };
    // A client that has enough closes the connection.
    let _ = (&stream).write_all(head.as_bytes()).and_then(|()| (&stream).write_all(body));
    if reply.stalls && request.method != "HEAD" {
        let _ = reader.read(&mut [0]);
    }
}

fn read(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_string(), words.next()?.to_string());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => headers.insert(name.to_lowercase(), value.to_string()),
            None => break,
        };
    }
    Some(Request { method, path, headers })
}
