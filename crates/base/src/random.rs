//! Random numbers by name and position, independent of threads, replicas and shards.

use distribute_tensor::random::Draws;

/// The numbers of `name` under `seed`.
pub fn draws(seed: u64, name: &str) -> Draws {
    Draws::new(seed, distribute_cluster::fnv1a(name.bytes()))
}
