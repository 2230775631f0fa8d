//! `distribute status`: what a running job does, as a table.

use crate::output::line;
use distribute::Result;
use distribute::monitor::{DEFAULT_ADDRESS, Error, Report, table};
use std::time::Duration;
use ureq::Agent;

/// How long a job may take to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// No report is larger than this; most have some 50 kB.
const MOST: u64 = 16 << 20;

/// Prints what a running job does: who trains, how fast, who waits for whom and why, the queue, the servers
#[derive(clap::Args)]
pub struct Arguments {
    /// Where its monitor is: the chief's, or the coordinator's
    #[arg(default_value = DEFAULT_ADDRESS)]
    address: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Prints it.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (text, report) = fetch(&arguments.address)?;
    if arguments.json {
        return line(escaped(&text));
    }
    table(&report).iter().try_for_each(line)
}

/// JSON without the control characters that its strings may have: a terminal would obey them.
fn escaped(json: &str) -> String {
    json.chars().fold(String::with_capacity(json.len()), |mut text, c| {
        match c {
            '\n' | '\r' | '\t' => text.push(c),
            c if c.is_control() => text.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => text.push(c),
        }
        text
    })
}

/// The report of the job at this address, as JSON and read.
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
