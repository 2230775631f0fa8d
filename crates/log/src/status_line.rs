//! [`StatusLine`]: a line at the bottom of a terminal that is replaced in place, and output above it.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The escape sequence that moves the cursor to the first column and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// The status line of this process.
static SHOWN: Mutex<Shown> = Mutex::new(Shown { is_taken: false, text: String::new() });

struct Shown {
    /// Whether a [`StatusLine`] exists.
    is_taken: bool,
    /// The text on the terminal; empty if there is none.
    text: String,
}

/// The last line of a terminal, which shows the state of something that takes long, such as a training run.
///
/// Warnings of this workspace, and everything that is written to [`stderr`], appear above it. Other output may be mixed
/// with it: [`hide`](Self::hide) the line before a call that may print. Dropping the value removes the line.
#[derive(Debug)]
#[must_use = "the line is removed when this is dropped"]
pub struct StatusLine(());

impl StatusLine {
    /// Returns the status line if standard error is a terminal that can replace a line, and no other `StatusLine` of
    /// this process exists.
    pub fn on_terminal() -> Option<Self> {
        let is_able =
            io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        let mut shown = shown();
        if !is_able || shown.is_taken {
            return None;
        }
        shown.is_taken = true;
        Some(Self(()))
    }

    /// Shows `text` instead of the previous text. Control characters are escaped. The terminal cuts off what exceeds
    /// its width.
    pub fn show(&self, text: &str) {
        let text = crate::plain(text);
        let mut shown = shown();
        write(&drawn(&text));
        shown.text = text.into_owned();
    }

    /// Removes the text until the next call of [`show`](Self::show).
    pub fn hide(&self) {
        hide(&mut shown());
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        let mut shown = shown();
        hide(&mut shown);
        shown.is_taken = false;
    }
}

/// Returns a writer to standard error. Complete lines that are written to it appear above the [`StatusLine`].
///
/// Pass this function to a subscriber: `tracing_subscriber::fmt().with_writer(stderr)`.
pub fn stderr() -> Stderr {
    Stderr(())
}

/// A writer to standard error, whose lines appear above the [`StatusLine`]; see [`stderr`].
#[derive(Debug)]
pub struct Stderr(());

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write_all(&above(&shown().text, bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

fn shown() -> MutexGuard<'static, Shown> {
    SHOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hide(shown: &mut Shown) {
    if !shown.text.is_empty() {
        write(CLEAR);
        shown.text.clear();
    }
}

fn write(text: &str) {
    // A closed terminal is ignored.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns the output that shows `text` in the current line, without a line break at the right margin. The cursor
/// ends in the first column, so that other output begins there.
fn drawn(text: &str) -> String {
    format!("{CLEAR}\x1b[?7l{text}\x1b[?7h\r")
}

/// Returns the output that shows `bytes` above the status line with the given text. If `bytes` end within a line, the
/// status line is not shown again, because it would become part of that line.
fn above<'b>(text: &str, bytes: &'b [u8]) -> Cow<'b, [u8]> {
    if text.is_empty() {
        return Cow::Borrowed(bytes);
    }
    // After an incomplete line, the status would be part of it.
    let again = if bytes.ends_with(b"\n") { drawn(text) } else { String::new() };
    Cow::Owned([CLEAR.as_bytes(), bytes, again.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines that a terminal with `columns` columns shows after `output`. Only the escape sequences that
    /// this file emits are interpreted.
    fn screen(columns: usize, output: &str) -> Vec<String> {
        let (mut lines, mut column, mut wraps) = (vec![Vec::new()], 0, true);
        let mut rest = output;
        while let Some(first) = rest.chars().next() {
            let sequence =
                ["\x1b[K", "\x1b[?7l", "\x1b[?7h"].into_iter().find(|known| rest.starts_with(known));
            rest = &rest[sequence.map_or(first.len_utf8(), str::len)..];
            let line: &mut Vec<char> = lines.last_mut().unwrap();
            match (sequence, first) {
                (Some("\x1b[K"), _) => line.truncate(column),
                (Some(mode), _) => wraps = mode.ends_with('h'),
                (None, '\r') => column = 0,
                (None, '\n') => {
                    lines.push(Vec::new());
                    column = 0;
                }
                (None, character) => {
                    assert!(!character.is_control(), "{output:?}");
                    if column == columns && wraps {
                        lines.push(Vec::new());
                        column = 0;
                    }
                    let (line, at) = (lines.last_mut().unwrap(), column.min(columns - 1));
                    line.resize(line.len().max(at + 1), ' ');
                    line[at] = character;
                    column = at + 1;
                }
            }
        }
        lines.into_iter().map(|line| line.into_iter().collect()).collect()
    }

    #[test]
    fn lines_appear_above_the_status_and_none_is_mixed_with_it() {
        let mut output = drawn("epoch 1/3 [==>   ] 12/40 loss 0.5");
        let mut line = |text: &str, line: &str| {
            output.push_str(std::str::from_utf8(&above(text, line.as_bytes())).unwrap());
        };
        line("epoch 1/3 [==>   ] 12/40 loss 0.5", "warning: slow\n");
        line("epoch 1/3 [==>   ] 12/40 loss 0.5", "distribute: the loss is NaN\nin two lines\n");
        output.push_str(&drawn("epoch 1/3 loss"));
        // Ten columns: the status stays in its line, and a later, shorter one leaves nothing of it.
        let expected =
            ["warning: s", "low", "distribute", ": the loss", " is NaN", "in two lin", "es", "epoch 1/3s"];
        assert_eq!(screen(10, &output), expected);
        assert_eq!(screen(80, &output)[2..], ["in two lines", "epoch 1/3 loss"]);
        output.push_str(CLEAR);
        assert_eq!(screen(80, &output)[3], "");
    }

    #[test]
    fn without_a_status_output_is_unchanged() {
        assert!(matches!(above("", b"line\n"), Cow::Borrowed(b"line\n")));
        assert_eq!(&*above("status", b"part of a line"), b"\r\x1b[Kpart of a line");
    }
}
