//! The trace file: events in the Trace Event Format, one per line, written through a buffer.

use super::slices::Slice;
use distribute_files::WholeFile;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// The number of bytes that are buffered before they are written to the file.
const BUFFER: usize = 64 << 10;

/// A file that grows event by event.
///
/// Only complete lines are written, and readers do not need the closing bracket, so the file is readable
/// whenever the process exits.
pub(super) struct Events<W: Write = File> {
    to: W,
    buffer: String,
    /// The first write error. Nothing is written after it.
    failed: Option<io::Error>,
}

impl Events {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        // A link of this name is replaced; a named pipe, which would block, is refused.
        Events::new(WholeFile::create(path)?.into_growing()?)
    }
}

impl<W: Write> Events<W> {
    fn new(to: W) -> io::Result<Self> {
        let mut events = Self { to, buffer: String::with_capacity(BUFFER + 1024), failed: None };
        let program = std::env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned();
        events.buffer.push_str("[\n");
        events.meta("process_name", 0, &program);
        events.write();
        events.failed.take().map_or(Ok(events), Err)
    }

    /// Writes the name of a track.
    pub(super) fn track(&mut self, track: u64, name: &str) {
        self.buffer.push_str(",\n");
        self.meta("thread_name", track, name);
    }

    pub(super) fn slice(&mut self, track: u64, slice: &Slice) {
        let Slice { name, args, start, end } = slice;
        let process = std::process::id();
        // Microseconds with three decimals.
        let micros = |nanos: u64| format!("{}.{:03}", nanos / 1000, nanos % 1000);
        let (ts, dur) = (micros(*start), micros(end - start));
        let _ = write!(
            self.buffer,
            ",\n{{\"ph\":\"X\",\"name\":{},\"ts\":{ts},\"dur\":{dur},\"pid\":{process},\"tid\":{track}",
            text(name)
        );
        if !args.is_empty() {
            let _ = write!(self.buffer, r#","args":{args}"#);
        }
        self.buffer.push('}');
        if self.buffer.len() >= BUFFER {
            self.write();
        }
    }

    /// Writes the rest of the buffer and the closing bracket. Returns the first error of this or an earlier write.
    pub(super) fn close(mut self) -> io::Result<()> {
        self.buffer.push_str("\n]\n");
        self.write();
        self.failed.map_or(Ok(()), Err)
    }

    fn meta(&mut self, what: &str, track: u64, name: &str) {
        let (process, name) = (std::process::id(), text(name));
        let _ = write!(
            self.buffer,
            "{{\"ph\":\"M\",\"name\":\"{what}\",\"pid\":{process},\"tid\":{track},\"args\":{{\"name\":{name}}}}}"
        );
    }

    fn write(&mut self) {
        if self.failed.is_none() {
            self.failed = self.to.write_all(self.buffer.as_bytes()).err();
        }
        self.buffer.clear();
    }
}

/// Converts a string to a JSON string.
pub(super) fn text(text: &str) -> serde_json::Value {
    serde_json::Value::from(text)
}
