//! The location of a strategy's variables.

use distribute_base::DeviceName;

/// The location of a strategy's variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VariablePlacement {
    /// A copy on each worker device.
    Mirrored,
    /// One copy on one device, which all replicas share.
    Central(DeviceName),
    /// One copy without rules, for strategies with one replica.
    Ordinary,
    /// One value on parameter servers, in shards, which all replicas of all workers share.
    Servers,
}
