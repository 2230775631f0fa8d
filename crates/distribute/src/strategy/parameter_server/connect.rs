//! How parameter servers are reached: in this process, or over connections.

use super::members::Members;
use super::{OPERATION, local_cluster};
use crate::{Error, Result};
use distribute_cluster::Job;
use distribute_params::{Channel, Request};
use distribute_ps::Connection;
use distribute_server::ClientBuilder;
use std::sync::Arc;
use std::time::Duration;

/// The ways to all servers. Those in other processes have answered, each within `patience`.
///
/// # Errors
/// [`Error::InvalidArgument`] that names those that have not, and why.
pub(super) fn connect(
    members: &Members,
    clients: &ClientBuilder,
    patience: Duration,
) -> Result<Vec<Arc<dyn Channel>>> {
    let (mut channels, mut remote) = (Vec::new(), Vec::new());
    for (number, address) in members.servers.iter().enumerate() {
        let channel = local_cluster::channel(number, address).unwrap_or_else(|| {
            remote.push(number);
            Arc::new(Connection::new(clients.clone(), Job::Ps.task(number)))
        });
        channels.push(channel);
    }
    // All at once: they may be on their way, in any order.
    let asked: Vec<_> =
        remote.iter().map(|number| (number, channels[*number].start(Request::List, patience))).collect();
    let answered = asked.into_iter().map(|(number, call)| (number, call.and_then(|call| call.wait())));
    let missing: Vec<String> = answered
        .filter_map(|(number, answer)| Some(format!("{}: {}", members.servers[*number], answer.err()?)))
        .collect();
    if missing.is_empty() {
        return Ok(channels);
    }
    let (count, all) = (missing.len(), channels.len());
    let reason = format!(
        "{count} of {all} parameter servers cannot be reached ({}); start them, and see their own errors",
        missing.join("; ")
    );
    Err(Error::invalid(OPERATION, reason))
}
