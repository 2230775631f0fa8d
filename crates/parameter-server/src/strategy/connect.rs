//! Connections to parameter servers, in this process or others.

use super::members::Members;
use super::{OPERATION, layout, local_cluster};
use distribute_base::{Error, Result};
use distribute_cluster::Job;
use distribute_ps_client::internal::Makes;
use distribute_ps_server::Connection;
use distribute_ps_tables::Channel;
use distribute_rpc::ClientBuilder;
use std::sync::Arc;
use std::time::Duration;

/// Connects to all servers. Servers in other processes have `patience` to answer, each of them. If this process
/// creates variables, all servers must belong to the same training, or to none.
///
/// # Errors
/// - [`Error::InvalidArgument`]: servers have not answered, which are listed with the causes; or servers have
///   tables of another training.
/// - [`Error::Server`]: a server cannot store the layout of the training.
pub(super) fn connect(
    members: &Members,
    clients: &ClientBuilder,
    patience: Duration,
    makes: Makes,
) -> Result<Vec<Arc<dyn Channel>>> {
    let (mut channels, mut remote) = (Vec::new(), Vec::new());
    for (number, address) in members.servers.iter().enumerate() {
        let channel = local_cluster::channel(number, address).unwrap_or_else(|| {
            remote.push(number);
            Arc::new(Connection::new(clients.clone(), Job::Ps.task(number)))
        });
        channels.push(channel);
    }
    // All requests are sent at once: servers may still be starting, in any order.
    let asked: Vec<_> =
        remote.iter().map(|number| (number, channels[*number].start(layout::question(), patience))).collect();
    let answered = asked.into_iter().map(|(number, call)| (number, call.and_then(|call| call.wait())));
    let (mut states, mut missing) = (Vec::new(), Vec::new());
    for (number, answer) in answered {
        match answer {
            Ok(answer) => states.push(layout::state(&answer)),
            Err(error) => missing.push(format!("{}: {error}", members.servers[*number])),
        }
    }
    if missing.is_empty() {
        // Servers in this process are never older than the program.
        if makes == Makes::Missing && states.len() == channels.len() {
            layout::agree(&channels, &states, patience)?;
        }
        return Ok(channels);
    }
    let (count, all) = (missing.len(), channels.len());
    let reason = format!(
        "{count} of {all} parameter servers cannot be reached ({}); start them, and see their own errors",
        missing.join("; ")
    );
    Err(Error::invalid(OPERATION, reason))
}
