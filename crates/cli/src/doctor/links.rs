//! The links to the tasks of the cluster that the environment names.

use super::Arguments;
use distribute::cluster::Task;
use distribute::cluster::resolver;
use distribute::net::{Certificates, Identity};
use distribute::{Error, Result};
use distribute_launch::parse_duration;
use distribute_server::doctor::{Report, examine, together};
use distribute_server::{ClientBuilder, Server};
use std::time::Duration;

/// What the links are like; `None` where there are none, or another task measures them.
pub fn report(arguments: &Arguments) -> Result<Option<Report>> {
    let resolver = resolver::from_env()?;
    let cluster = resolver.cluster_spec()?;
    let patience = match &arguments.timeout {
        Some(text) => parse_duration("--timeout", text).map_err(Error::other)?,
        None => Duration::from_secs(if arguments.listen { 60 } else { 5 }),
    };
    let me = match (arguments.listen, resolver.membership()) {
        (false, _) => Task::new("doctor", 0),
        (true, Ok(Some((_, task)))) => task,
        (true, Ok(None)) => {
            let text = "doctor --listen: the environment names no cluster; set TF_CONFIG, or start it by distribute launch";
            return Err(Error::other(text));
        }
        (true, Err(error)) => return Err(error.into()),
    };
    if cluster.is_empty() {
        return Ok(None);
    }
    cluster.check_hosts()?;
    let mut clients = ClientBuilder::new(cluster.clone(), me.clone());
    let mut server = Server::builder(cluster.clone()).task(me.clone());
    if let Some(identity) = identity(arguments) {
        clients = clients.identity(identity.clone());
        server = server.identity(identity);
    }
    if arguments.allow_plain_text_on_the_network {
        clients = clients.allow_plain_text_on_the_network();
        server = server.allow_plain_text_on_the_network();
    }
    let mut unseen = |_: &_| {};
    if arguments.listen {
        return together(server, &clients, &me, patience, &mut unseen).map_err(Error::other);
    }
    Ok(Some(examine(&clients, &cluster, &me, patience, &mut unseen)))
}

fn identity(arguments: &Arguments) -> Option<Identity> {
    match (&arguments.ca, &arguments.certificate, &arguments.key) {
        (Some(ca), Some(certificate), Some(key)) => Some(Identity::Certificates(Certificates {
            ca: ca.clone(),
            certificate: certificate.clone(),
            key: key.clone(),
        })),
        _ => None,
    }
}
