//! Connecting to parameter servers, in this process or in others.

use crate::{layout, local_cluster};
use distribute_base::{Error, ErrorKind, Result};
use distribute_cluster::{Address, Job};
use distribute_ps_server::ConnectionBuilder;
use distribute_ps_tables::Channel;
use std::sync::Arc;
use std::time::Duration;

/// The name of the operation in errors.
pub(crate) const OPERATION: &str = "connecting to parameter servers";

/// Connects to the servers at the given addresses. Servers in other processes must answer within `patience`.
///
/// If this process `begins` the training run, and all servers are in other processes, also checks that all of them
/// belong to the same training run, or makes them store the layout of a new one.
///
/// # Errors
/// - [`Error::Failed`]: servers did not answer. The error lists them, with the causes.
/// - [`Error::InvalidArgument`]: servers have tables of a different training run, or of one with another number of
///   servers; or a server has tables but no layout.
/// - [`Error::Server`]: a server cannot store the layout of the training run, or did not answer this request.
pub fn connect(
    servers: &[Address],
    connections: &ConnectionBuilder,
    patience: Duration,
    begins: bool,
) -> Result<Vec<Arc<dyn Channel>>> {
    let (mut channels, mut remote) = (Vec::new(), Vec::new());
    for (number, address) in servers.iter().enumerate() {
        let channel = local_cluster::channel(number, address).unwrap_or_else(|| {
            remote.push(number);
            Arc::new(connections.clone().open(Job::Ps.task(number)))
        });
        channels.push(channel);
    }
    // All requests are sent at once: servers may still be starting, in any order.
    let asked: Vec<_> = remote
        .iter()
        .map(|number| (number, channels[*number].start(layout::state_request(), patience)))
        .collect();
    let answered = asked.into_iter().map(|(number, call)| (number, call.and_then(|call| call.wait())));
    let (mut states, mut missing) = (Vec::new(), Vec::new());
    for (number, answer) in answered {
        match answer {
            Ok(answer) => states.push(layout::parse_state(&answer)),
            Err(error) => missing.push(format!("{}: {error}", servers[*number])),
        }
    }
    if missing.is_empty() {
        // Servers in this process are never older than the program.
        if begins && states.len() == channels.len() {
            layout::ensure_layout(&channels, &states, patience)?;
        }
        return Ok(channels);
    }
    let (count, all) = (missing.len(), channels.len());
    let reason = format!(
        "{count} of {all} parameter servers cannot be reached ({}); start them, and check their errors",
        missing.join("; ")
    );
    Err(Error::failed(ErrorKind::ServerUnavailable, OPERATION, reason))
}
