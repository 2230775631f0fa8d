//! [`AutoShardPolicy`]: the policies by which a pipeline is sharded over workers.

use std::fmt;

/// The policy by which a dataset is sharded over workers. Each worker has a separate pipeline.
#[doc(alias = "tf.data.experimental.AutoShardPolicy")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum AutoShardPolicy {
    /// Each worker takes all elements of its pipeline, because the user has sharded the data, or because every
    /// worker needs all of it.
    Off,
    /// Shards by file if all workers together then read exactly the elements that a single reader would. Otherwise,
    /// and with a single worker, shards like [`Data`](Self::Data). With
    /// [`SplitRule::TensorFlow`](crate::SplitRule::TensorFlow), shards by file whenever all sources read files; a
    /// source with fewer files than workers is then an error.
    #[default]
    Auto,
    /// Each worker reads different files: worker `w` of `W` reads the files `w`, `w + W`, …
    File,
    /// Each worker is dealt files during the pass: another one whenever it has read the others, so workers with small
    /// files read more of them. Which worker reads which file does not depend on timing, and is part of the position.
    /// There may be fewer files than workers.
    #[doc(alias = "DYNAMIC")]
    #[doc(alias = "tf.data.experimental.service.ShardingPolicy.DYNAMIC")]
    Dealt,
    /// Each worker reads everything, and takes its replicas' rows of each batch.
    Data,
    /// Worker `w` of `W` takes the elements `w`, `w + W`, … at the position of the
    /// [`shard_hint`](crate::Dataset::shard_hint).
    Hint,
}

impl fmt::Display for AutoShardPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AutoShardPolicy::Off => "OFF",
            AutoShardPolicy::Auto => "AUTO",
            AutoShardPolicy::File => "FILE",
            AutoShardPolicy::Dealt => "DEALT",
            AutoShardPolicy::Data => "DATA",
            AutoShardPolicy::Hint => "HINT",
        })
    }
}

/// The decision about how a pipeline is sharded. It is made for the complete pipeline before anything is
/// rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The chosen policy, which is never [`Auto`](AutoShardPolicy::Auto).
    pub taken: AutoShardPolicy,
    /// The reason for the choice, as text.
    pub why: String,
    /// Whether every worker must read all files although all sources read files, which may be more work than
    /// expected.
    pub fell_back: bool,
}
