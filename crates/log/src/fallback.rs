//! [`warn_or_stderr`]: warnings and errors that reach the user in any program.

use crate::{plain_lines, stderr};
use std::fmt::{Debug, Write as _};
use std::io::{self, Write};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{NoSubscriber, with_default};
use tracing::{Event, Level, Metadata, Subscriber, dispatcher};

/// Runs `body` and sends its warnings and errors to the program's `tracing` subscriber. If there is none, they are
/// written to standard error, as lines that begin with `distribute:`. Users therefore see warnings, for example that
/// replicas wait for one that hangs, even if a program doesn't set up logging. No subscriber is installed, so the
/// program can still set its own.
pub fn warn_or_stderr<R>(body: impl FnOnce() -> R) -> R {
    at_level(Level::WARN, body)
}

/// Acts like [`warn_or_stderr`], but includes events of level INFO. Use it for information that users always need, such
/// as the workers of a training run, or the workers for which the run is waiting.
pub fn info_or_stderr<R>(body: impl FnOnce() -> R) -> R {
    at_level(Level::INFO, body)
}

fn at_level<R>(least: Level, body: impl FnOnce() -> R) -> R {
    if dispatcher::get_default(|program| program.is::<NoSubscriber>()) {
        with_default(Lines { out: stderr, least }, body)
    } else {
        body()
    }
}

/// A subscriber that writes events as lines to the output that `out` returns.
struct Lines<O> {
    out: fn() -> O,
    /// The least severe level that is written.
    least: Level,
}

impl<O: Write + 'static> Subscriber for Lines<O> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.least
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::from_level(self.least))
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        // A closed output is ignored.
        let _ = line.write(*event.metadata().level(), &mut (self.out)());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Line {
    fn text(&self, level: Level) -> String {
        let level = match level {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        let (open, close) = if self.fields.is_empty() { ("", "") } else { (" (", ")") };
        // A part of the text may come from another process.
        let text = format!("distribute: {level}{}{open}{}{close}", self.message, self.fields);
        plain_lines(&text).into_owned()
    }

    /// Writes a line with a single call, so that it is not interleaved with the output of other threads and processes.
    fn write(&self, level: Level, out: &mut impl Write) -> io::Result<()> {
        let mut text = self.text(level);
        text.push('\n');
        out.write_all(text.as_bytes())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => {
                let comma = if self.fields.is_empty() { "" } else { ", " };
                write!(self.fields, "{comma}{name} {value:?}")
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    thread_local! {
        static WRITES: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    }

    /// A writer that keeps the output of this thread, with one entry for each write.
    struct Kept;

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            WRITES.with_borrow_mut(|writes| writes.push(bytes.to_vec()));
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_programs_subscriber_alone_gets_the_event_and_a_line_is_one_write() {
        with_default(Lines { out: || Kept, least: Level::WARN }, || {
            warn_or_stderr(|| tracing::error!(replica = 1, call = %"all_reduce", "stuck"));
            warn_or_stderr(|| tracing::warn!("slow: {}", "\x1b[2J"));
        });
        let lines = [
            "distribute: error: stuck (replica 1, call all_reduce)\n",
            "distribute: warning: slow: \\u{1b}[2J\n",
        ];
        assert_eq!(WRITES.take(), lines.map(|line| line.as_bytes().to_vec()));
    }

    #[test]
    fn without_one_warnings_are_written_and_nothing_stays_installed() {
        let inside = warn_or_stderr(|| dispatcher::get_default(|now| now.is::<Lines<crate::Stderr>>()));
        let after = dispatcher::get_default(|now| now.is::<NoSubscriber>());
        assert!(inside && after);
    }
}
