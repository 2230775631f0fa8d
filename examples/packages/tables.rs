//! The location of the tables of embeddings, if several workers train in step. The weights are the same everywhere.
//!
//! ```text
//! distribute launch --workers 2 -- target/release/examples/packages --strategy multi-worker --tables workers
//! distribute launch --workers 2 --ps 2 -- target/release/examples/packages --strategy multi-worker --tables servers
//! ```

use clap::ValueEnum;
use distribute::cluster::resolver;
use distribute::parameter_server::ServeBuilder;
use distribute::prelude::*;
use distribute::strategy::TableHosts;

/// The location of the tables.
#[derive(ValueEnum, Clone, Copy, PartialEq)]
pub enum Tables {
    /// Each worker has a copy of each table
    Mirrored,
    /// Each worker has a share of the rows of each table
    Workers,
    /// The parameter servers of the cluster in the environment have them
    Servers,
}

/// Returns the strategy of this worker. Returns `None` if this process was a parameter server, and has served.
pub fn strategy(tables: Tables, replicas: usize) -> distribute::Result<Option<Strategy>> {
    let hosts = match tables {
        Tables::Mirrored => TableHosts::Mirrored,
        Tables::Workers => TableHosts::Workers,
        Tables::Servers => TableHosts::Servers,
    };
    let cluster = resolver::from_env()?;
    if tables == Tables::Servers && ServeBuilder::new().parameter_servers_only().run(&*cluster)?.has_served()
    {
        return Ok(None);
    }
    MultiWorkerMirroredStrategy::builder().replicas(replicas).tables(hosts).build().map(Some)
}
