//! This program in a separate process. It is controlled in the same way as the peers, so that it is stopped while they
//! are measured.

use super::figure::{Effort, Figure};
use super::sample::Sample;
use crate::output;
use distribute::{Error, Result};
use serde_json::json;
use std::io::BufRead;

/// Prints the version. Then answers each line of `input`, which contains a number of seconds, with the sample of a
/// round of this length, or with the error if the line is not a number or the round fails.
pub fn run(figure: &dyn Figure, input: impl BufRead) -> Result<()> {
    output::line(json!({ "version": env!("CARGO_PKG_VERSION") }).to_string())?;
    for line in input.lines() {
        let read = |source| Error::Io { operation: "reading how long a round is".into(), source };
        let answer = round(figure, &line.map_err(read)?);
        output::line(match answer {
            Ok(sample) => sample.line(),
            Err(error) => json!({ "error": error.to_string() }).to_string(),
        })?;
    }
    Ok(())
}

fn round(figure: &dyn Figure, line: &str) -> Result<Sample> {
    let seconds = line.trim().parse().map_err(|error| Error::InvalidArgument {
        operation: "bench --serve",
        reason: format!("{error}: {line:?} is no number of seconds"),
    })?;
    figure.round(Effort { seconds })
}
