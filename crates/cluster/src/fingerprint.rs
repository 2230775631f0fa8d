//! The fingerprints of collective calls, with which members check that they make the same call.

// - INV-26: in the tests all workers share the counters of one process. Tests: `collective/tests/it/group.rs`,
//   `clusters/multi_worker/variables.rs`, `optimizer/src/step/agreement.rs`.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A kind of call in which all members of a group participate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Operation {
    // Workers compare the discriminants, so append new variants at the end.
    /// All members contribute a value and receive the reduction of all values.
    AllReduce,
    /// All members contribute a value and receive the concatenation of all values.
    AllGather,
    /// A function runs once, with the arguments of all members (`merge_call`).
    MergeCall,
    /// Gradients are reduced and variables are updated.
    Minimize,
    /// A variable is created, once for all members.
    CreateVariable,
    /// The values that members write to a variable are combined.
    WriteVariable,
    /// Members wait for each other.
    Barrier,
    /// The workers begin a step of the strategy's `run`.
    Run,
    /// The values of all replicas are reduced in a cross-replica context, by code that runs once for all of them.
    Reduce,
    /// The workers agree on whether there is data for another step.
    NextBatch,
    /// A dataset is distributed over the workers.
    DistributeDataset,
    /// The chief saves state for all workers.
    Save,
    /// Every worker restores the same state.
    Restore,
    /// The workers of a resumed training run agree on its position.
    Recover,
    /// The values of all replicas are concatenated in a cross-replica context, by code that runs once for all of them.
    Gather,
    /// The copies of a variable are combined into the value that a read returns.
    ReadVariable,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::MergeCall => "merge_call",
            Operation::Minimize => "minimize",
            Operation::CreateVariable => "creation of a variable",
            Operation::WriteVariable => "write to a variable",
            Operation::Barrier => "barrier",
            Operation::Run => "run",
            Operation::Reduce => "reduce",
            Operation::NextBatch => "the next batch",
            Operation::DistributeDataset => "distribution of a dataset",
            Operation::Save => "save",
            Operation::Restore => "restore",
            Operation::Recover => "recovery",
            Operation::Gather => "gather",
            Operation::ReadVariable => "read of a variable",
        })
    }
}

/// A source location in the user's program. It may be in this process or another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSite {
    /// The path of the source file, as it was passed to the compiler.
    pub file: Cow<'static, str>,
    /// The line, counted from 1.
    pub line: u32,
    /// The column, counted from 1.
    pub column: u32,
}

impl From<&'static Location<'static>> for CallSite {
    fn from(at: &'static Location<'static>) -> Self {
        Self { file: Cow::Borrowed(at.file()), line: at.line(), column: at.column() }
    }
}

impl CallSite {
    /// Returns the location to report for a call of `Iterator::next` at `at`. If that is in the standard library, for
    /// example in `enumerate` or `zip`, returns `begun`, the location at which the user's loop begins.
    pub fn or_begun(at: &'static Location<'static>, begun: &'static Location<'static>) -> Self {
        if is_of_std(at.file()) { begun.into() } else { at.into() }
    }
}

/// Returns whether a source file belongs to the standard library, by its path in the compiled library or in installed
/// sources.
fn is_of_std(file: &str) -> bool {
    let file = file.replace('\\', "/");
    file.starts_with("/rustc/")
        || ["core", "alloc", "std"].iter().any(|of| file.contains(&format!("/library/{of}/src/")))
}

impl fmt::Display for CallSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// The identity of the call that one member makes. Members compare fingerprints before they use any data of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The kind of call.
    pub operation: Operation,
    /// The other properties that must be equal on all members, as text: the reduce operation, dtypes, shapes,
    /// structure.
    pub detail: Arc<str>,
    /// The source location of the call. Not compared, because branches may make the same call at different
    /// locations.
    pub at: CallSite,
    /// Whether this is a later part of a call that was already counted. Not compared.
    pub continues: bool,
}

impl Fingerprint {
    /// Creates the fingerprint of a call. `detail` contains the properties that must be equal on all members, and `at`
    /// is the source location.
    pub fn new(operation: Operation, detail: impl Into<Arc<str>>, at: impl Into<CallSite>) -> Self {
        Self { operation, detail: detail.into(), at: at.into(), continues: false }
    }

    /// Returns the fingerprint of a later part of the same call, named `part`. It is not counted again.
    pub fn part(&self, part: &str) -> Self {
        Self { detail: format!("{}: {part}", self.detail).into(), continues: true, ..self.clone() }
    }

    /// Returns whether both fingerprints are of the same call: the operations and the details are equal.
    pub fn matches(&self, other: &Self) -> bool {
        self.operation == other.operation && self.detail == other.detail
    }

    /// Returns a hash of the fields that [`matches`](Self::matches) compares, for comparisons between processes. All
    /// processes of the same program compute the same hash. Two different calls have the same hash with a probability
    /// of 2⁻⁶⁴.
    pub fn digest(&self) -> u64 {
        fnv1a(std::iter::once(self.operation as u8).chain(self.detail.bytes()))
    }
}

/// Returns the FNV-1a hash of bytes. Unlike hashes of the standard library, it is the same in every process and with
/// every version of Rust.
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.operation)?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        write!(f, " at {}", self.at)
    }
}
