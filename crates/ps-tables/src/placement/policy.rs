//! The choice of a server for a new variable or shard, and of the weights that servers store.

use crate::PartitionStrategy;
use distribute_cluster::fnv1a;
use distribute_tensor::random::mix;
use serde::{Deserialize, Serialize};

/// The way in which servers are chosen for new variables and shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlacementPolicy {
    /// The servers in turn, for variables in the order of their creation.
    #[default]
    RoundRobin,
    /// The server with the fewest bytes so far; the first of several.
    #[doc(alias = "GreedyLoadBalancingStrategy")]
    #[doc(alias = "byte_size_load_fn")]
    GreedyByBytes,
    /// A server chosen by a hash of the name, independent of the order of creation and of other variables. If a server
    /// is added, the only variables that move are those assigned to the new server.
    ByHash,
}

/// The rule that determines which weights of models are stored on servers, and with which partition, if the servers
/// store nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePolicy {
    /// The minimum size in bytes of a variable that is partitioned over all servers. Smaller variables are not stored
    /// on servers or, with `all_weights`, are stored completely on one of them.
    pub min_bytes: usize,
    /// The partition of the rows over all servers.
    pub partition: PartitionStrategy,
    /// Whether servers store all weights of models instead of only tables.
    pub all_weights: bool,
}

impl TablePolicy {
    /// Returns `true` if servers store a weight. `table` is the weight's size in bytes if it is a table, and `None`
    /// otherwise.
    pub fn stores(self, table: Option<usize>) -> bool {
        self.all_weights || table.is_some_and(|bytes| bytes >= self.min_bytes)
    }
}

/// The state on which the choice of a server depends.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    policy: PlacementPolicy,
    turn: usize,
    loads: Vec<u64>,
}

impl Choice {
    pub(super) fn new(policy: PlacementPolicy, servers: usize) -> Self {
        Self { policy, turn: 0, loads: vec![0; servers] }
    }

    pub(super) fn loads(&self) -> &[u64] {
        &self.loads
    }

    /// Chooses the server of a new variable or shard, and records the placement.
    pub(super) fn next(&mut self, name: &str, bytes: u64) -> usize {
        let servers = 0..self.loads.len();
        let server = match self.policy {
            PlacementPolicy::RoundRobin => {
                let turn = self.turn;
                self.turn = (turn + 1) % self.loads.len();
                turn
            }
            PlacementPolicy::GreedyByBytes => servers.min_by_key(|s| self.loads[*s]).unwrap_or(0),
            PlacementPolicy::ByHash => {
                // Rendezvous hashing: each server has a hash for the name, and the highest wins.
                let name = fnv1a(name.bytes());
                servers.max_by_key(|s| mix(name ^ mix(*s as u64 + 1))).unwrap_or(0)
            }
        };
        self.take(server, bytes)
    }

    /// Records a placement of `bytes` bytes on a given server, and returns the server.
    pub(super) fn take(&mut self, server: usize, bytes: u64) -> usize {
        self.loads[server] = self.loads[server].saturating_add(bytes);
        server
    }
}
