//! [`AutoShardPolicy`]: the ways to shard a pipeline over workers.

use std::fmt;

/// The way to shard elements over workers, each of which has its own pipeline.
#[doc(alias = "tf.data.experimental.AutoShardPolicy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum AutoShardPolicy {
    /// Each worker takes all elements: the user has sharded the data, or every worker needs all of it.
    Off,
    /// Shards by files if the workers together then get the same elements as by reading everything, otherwise by
    /// elements.
    #[default]
    Auto,
    /// Each worker reads its own files: `w`, `w + W`, …
    File,
    /// Each worker reads everything and takes its replicas' rows of each batch.
    Data,
    /// Each worker takes the elements `w`, `w + W`, … at the position of
    /// [`shard_hint`](crate::Dataset::shard_hint).
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
    /// The chosen policy: never [`Auto`](AutoShardPolicy::Auto).
    pub taken: AutoShardPolicy,
    /// The reason, in words.
    pub why: String,
    /// Whether every worker has to read all files although the sources are files. That may be unexpected
    /// work.
    pub fell_back: bool,
}
