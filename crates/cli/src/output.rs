//! Writes lines to standard output. If the reader has closed the pipe, the process exits without a panic.

use distribute::{Error, Result};
use std::io::{IsTerminal, Write};

/// Writes a line to standard output. If the reader has closed the pipe, exits the process with code 0.
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

/// Returns `true` if standard output is a terminal.
pub fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Returns a word in a terminal colour (31 red, 32 green, 33 yellow). If the output is not a terminal, returns it
/// without colour.
pub fn coloured(text: &str, colour: u8) -> String {
    if is_terminal() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_string() }
}
