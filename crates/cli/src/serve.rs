//! `distribute serve`: a parameter server on its own, for clients that are not programs of this library.

use crate::output::remark;
use distribute::cluster::resolver::{ClusterResolver, SimpleClusterResolver, TfConfigClusterResolver};
use distribute::cluster::{ClusterSpec, Job};
use distribute::parameter_server::ServeBuilder;
use distribute::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Serves tables to clients in any language, until the chief stops the server, it is killed, or its lease ends
#[derive(clap::Args)]
pub struct Arguments {
    /// The addresses of all parameter servers, in the same order for each server. By default, the cluster and this task
    /// are read from TF_CONFIG
    #[arg(long, value_delimiter = ',', value_name = "HOST:PORT,…")]
    servers: Vec<String>,
    /// The position of this server in the addresses
    #[arg(long, default_value_t = 0, requires = "servers")]
    index: usize,
    /// The folder of all servers on this machine: each uses a separate subfolder, ps-0, ps-1, … Without one, tables are
    /// only kept in memory
    #[arg(long)]
    folder: Option<PathBuf>,
    /// The name of the job. Clients that give a job name must give this one
    #[arg(long)]
    job: Option<String>,
    /// The seconds without a connected client after which the server exits; by default, it never does
    #[arg(long)]
    lease: Option<u64>,
}

/// Serves until the chief stops the server or its lease ends.
pub fn run(arguments: &Arguments) -> Result<()> {
    let lease = arguments.lease.map_or(Duration::MAX, Duration::from_secs);
    let mut server = ServeBuilder::new().parameter_servers_only().lease(lease);
    if let Some(folder) = &arguments.folder {
        server = server.folder(folder);
    }
    if let Some(job) = &arguments.job {
        server = server.job(job);
    }
    let resolver: Box<dyn ClusterResolver> = if arguments.servers.is_empty() {
        Box::new(TfConfigClusterResolver::from_env()?)
    } else {
        let cluster = ClusterSpec::from_lists([("ps", &arguments.servers)])?;
        Box::new(SimpleClusterResolver::new(cluster).with_task(Job::Ps.task(arguments.index)))
    };
    if server.run(&*resolver)?.has_served() {
        remark("the server has ended");
        return Ok(());
    }
    let reason = "this task is not a parameter server: give --servers and --index, or TF_CONFIG with a task of type ps";
    Err(Error::Other(reason.into()))
}
