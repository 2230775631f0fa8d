//! `distribute status`: shows the state of a running job as a table.

use crate::output::line;
use distribute::Result;
use distribute::monitor::{DEFAULT_ADDRESS, Error, Report, table};
use std::time::Duration;
use ureq::Agent;

/// The maximum time to wait for the response of a job.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum accepted size of a report in bytes. Most reports have about 50 kB.
const MOST: u64 = 16 << 20;

/// Shows the state of a running job: its workers and their speed, which of them wait and why, the queue, and the
/// servers
#[derive(clap::Args)]
pub struct Arguments {
    /// The address of the job's monitor, which runs in the chief or coordinator
    #[arg(default_value = DEFAULT_ADDRESS)]
    address: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Fetches the report, and prints it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (text, report) = fetch(&arguments.address)?;
    if arguments.json {
        return line(escaped(&text));
    }
    table(&report).iter().try_for_each(line)
}

/// Escapes the control characters in JSON, except line breaks and tabs, because a terminal would interpret them.
/// Removes carriage returns, which may only be between tokens.
fn escaped(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut text, c| {
        match c {
            '\n' | '\t' => text.push(c),
            '\r' => {}
            c if c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
        text
    })
}

/// Fetches the report of the job at `address`. Returns it both as JSON and decoded.
fn fetch(address: &str) -> Result<(String, Report), Error> {
    let address = address.trim_start_matches("http://").trim_end_matches('/').to_string();
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .max_redirects(0)
        .proxy(None)
        .http_status_as_error(false)
        .build()
        .into();
    let no_answer =
        |error: ureq::Error| Error::NoAnswer { address: address.clone(), reason: error.to_string() };
    let no_report = |reason: String| Error::NoReport { address: address.clone(), reason };
    let mut answer = agent.get(format!("http://{address}/status.json")).call().map_err(no_answer)?;
    let (code, body) = (answer.status(), answer.body_mut().with_config().limit(MOST).read_to_string());
    let text = body.map_err(no_answer)?;
    if code != 200 {
        let first = text.lines().next().unwrap_or_default();
        return Err(no_report(format!("it answers {code}: {}", first.chars().take(200).collect::<String>())));
    }
    let report: Report = serde_json::from_str(&text).map_err(|error| no_report(error.to_string()))?;
    if report.format != distribute::monitor::FORMAT {
        return Err(no_report(format!("its reports have the form {}", report.format)));
    }
    Ok((text, report))
}
