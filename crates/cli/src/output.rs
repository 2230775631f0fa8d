//! Lines to standard output that fail with an error, not a panic, when the reader has closed the pipe.

use distribute::{Error, Result};
use std::io::{IsTerminal, Write};

/// Writes a line.
pub fn line(text: impl AsRef<str>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.as_ref()).and_then(|()| out.flush()) {
        // The reading program, for example `head`, has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(source) => Err(Error::Io { operation: "writing to standard output".into(), source }),
        Ok(()) => Ok(()),
    }
}

/// Writes a line to standard error. Errors are ignored.
pub fn remark(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr().lock(), "{}", text.as_ref());
}

/// Returns whether standard output is a terminal.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns a word in a colour of the terminal (31 red, 32 green, 33 yellow); plain if the output is not a
/// terminal.
pub fn coloured(text: &str, colour: u8) -> String {
    if is_terminal() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_string() }
}
