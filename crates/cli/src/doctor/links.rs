//! The measurement of the links to the tasks of the cluster that the environment names.

use super::Arguments;
use distribute::cluster::Task;
use distribute::cluster::resolver;
use distribute::net::{Certificates, Credentials};
use distribute::{Error, Result};
use distribute_launch::parse_duration;
use distribute_rpc::doctor::{Report, examine, participate};
use distribute_rpc::{ClientBuilder, Server};
use std::time::Duration;

/// Measures the links to other tasks. With `--listen`, also answers their measurements. Returns `None` if the
/// environment describes no cluster, or if another task measures the links. With `--listen`, an environment without a
/// cluster is an error.
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
            let text = "doctor --listen: the environment describes no cluster; set TF_CONFIG, or start it \
                        with distribute launch";
            return Err(Error::other(text));
        }
        (true, Err(error)) => return Err(error.into()),
    };
    if cluster.is_empty() {
        return Ok(None);
    }
    cluster.check_hosts()?;
    let credentials = credentials(arguments);
    let clients = ClientBuilder::new(cluster.clone(), me.clone()).credentials(credentials.clone());
    let server = Server::builder(cluster.clone()).task(me.clone()).credentials(credentials);
    let mut unseen = |_: &_| {};
    if arguments.listen {
        return participate(server, &clients, &me, patience, &mut unseen).map_err(Error::other);
    }
    Ok(Some(examine(&clients, &cluster, &me, patience, &mut unseen)))
}

fn credentials(arguments: &Arguments) -> Credentials {
    let mut credentials = Credentials::new();
    if let (Some(ca), Some(certificate), Some(key)) = (&arguments.ca, &arguments.certificate, &arguments.key)
    {
        let (ca, certificate, key) = (ca.clone(), certificate.clone(), key.clone());
        credentials = credentials.certificates(Certificates { ca, certificate, key });
    }
    if arguments.allow_plain_text_on_the_network {
        credentials = credentials.allow_plain_text_on_the_network();
    }
    credentials
}
