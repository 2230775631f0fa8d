//! Which server is next.

use distribute_cluster::fnv1a;
use distribute_tensor::random::mix;
use serde::{Deserialize, Serialize};

/// How servers are chosen for new variables, and for the shards of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PlacementPolicy {
    /// In turn, in the order of creation.
    #[default]
    RoundRobin,
    /// The one that has the least bytes so far; of several the first.
    #[doc(alias = "GreedyLoadBalancingStrategy")]
    #[doc(alias = "byte_size_load_fn")]
    GreedyByBytes,
    /// By name alone: neither the order of creation nor other variables play a role, and where a server is added, only what
    /// goes to it moves.
    ByHash,
}

/// Chooses servers, and keeps what the policies need to know.
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

    /// The server of something new.
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
                // Rendezvous hashing: each server draws a number for the name, and the highest wins.
                let name = fnv1a(name.bytes());
                servers.max_by_key(|s| mix(name ^ mix(*s as u64 + 1))).unwrap_or(0)
            }
        };
        self.take(server, bytes)
    }

    /// A server that is given.
    pub(super) fn take(&mut self, server: usize, bytes: u64) -> usize {
        self.loads[server] = self.loads[server].saturating_add(bytes);
        server
    }
}
