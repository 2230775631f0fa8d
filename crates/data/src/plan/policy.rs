//! How a pipeline is sharded over workers.

use std::fmt;

/// How elements are sharded over workers that each have a pipeline of their own.
#[doc(alias = "tf.data.experimental.AutoShardPolicy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum AutoShardPolicy {
    /// Each worker takes all elements: the user has sharded the data, or wants every worker to see everything.
    Off,
    /// By files if the workers together then get the same elements as by reading everything, otherwise by elements.
    #[default]
    Auto,
    /// Each worker reads files of its own: `w`, `w + W`, …
    File,
    /// Each worker reads everything and takes its pieces of each batch.
    Data,
    /// Each worker takes the elements `w`, `w + W`, … at the place of [`shard_hint`](crate::Dataset::shard_hint).
    Hint,
}

impl fmt::Display for AutoShardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AutoShardPolicy::Off => "OFF",
            AutoShardPolicy::Auto => "AUTO",
            AutoShardPolicy::File => "FILE",
            AutoShardPolicy::Data => "DATA",
            AutoShardPolicy::Hint => "HINT",
        })
    }
}

/// The decision of a policy. It is made for the whole pipeline before anything is rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The policy taken: never [`Auto`](AutoShardPolicy::Auto).
    pub taken: AutoShardPolicy,
    /// The reason, in words.
    pub why: String,
    /// Whether every worker has to read all files although the sources are files, which may be more work than expected.
    pub fell_back: bool,
}
