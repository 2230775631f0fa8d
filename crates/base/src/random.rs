//! Random numbers that depend on a name and a position, but not on threads, replicas or shards.

use distribute_tensor::random::Draws;

/// Returns the sequence of random numbers for `name` with the given seed.
pub fn draws(seed: u64, name: &str) -> Draws {
    Draws::new(seed, distribute_cluster::fnv1a(name.bytes()))
}
