//! The decision about how a pipeline is sharded over workers.

use crate::pipeline::{Pipeline, Sharding, visit};
use crate::plan::policy::{AutoShardPolicy, Decision};
use crate::{Error, Result, SplitRule};

/// Decides how a pipeline is sharded over the given number of workers.
///
/// `Auto` shards by files if every source has at least as many files as there are workers, and no operation (such as
/// `take` or `zip`) would behave differently on a shard. Otherwise, or with a single worker, it shards by elements.
/// With [`SplitRule::TensorFlow`], it shards by files whenever all sources are files; a source with fewer files than
/// workers is then [`Error::TooFewFiles`].
///
/// `File` shards by files. It returns [`Error::TooFewFiles`] if a source has fewer files than there are workers, and
/// [`Error::Unshardable`] if a source does not read files. In the latter case, a single worker reads everything
/// instead.
///
/// `Dealt` returns [`Error::NotDealt`] if there is not exactly one source of files, or if an operation counts elements
/// or reads its input again. A single worker reads everything.
pub(super) fn decide(
    pipeline: &Pipeline,
    policy: AutoShardPolicy,
    rule: SplitRule,
    workers: usize,
) -> Result<Decision> {
    let decided = |taken, why: String| Ok(Decision { taken, why, fell_back: false });
    let sources = Sources::of(pipeline);
    let tensorflow = rule == SplitRule::TensorFlow;
    let fall_back = |why| Ok(Decision { taken: AutoShardPolicy::Data, why, fell_back: true });
    match policy {
        AutoShardPolicy::Off => decided(policy, "as requested: every worker reads everything".into()),
        AutoShardPolicy::Data => decided(policy, "as asked".into()),
        AutoShardPolicy::Hint => decided(policy, "as requested: at the position of shard_hint".into()),
        // One worker needs no sharding, so no source can be in the way (AS-3).
        AutoShardPolicy::File if workers == 1 && sources.other.is_some() => {
            decided(AutoShardPolicy::Off, "one worker reads everything".into())
        }
        AutoShardPolicy::File => match sources.refusal(workers) {
            Some(refusal) => Err(refusal),
            None => decided(policy, "as asked".into()),
        },
        AutoShardPolicy::Dealt if workers == 1 => {
            decided(AutoShardPolicy::Data, "one worker reads everything".into())
        }
        AutoShardPolicy::Dealt => match sources.why_not_dealt() {
            Some(why) => Err(Error::NotDealt { why }),
            None => decided(policy, "as asked".into()),
        },
        AutoShardPolicy::Auto => match (sources.refusal(workers), &sources.whole) {
            (Some(refusal @ Error::TooFewFiles { .. }), _) if tensorflow => Err(refusal),
            _ if workers == 1 && !tensorflow => {
                decided(AutoShardPolicy::Data, "one worker reads everything".into())
            }
            (Some(refusal @ Error::TooFewFiles { .. }), _) => fall_back(refusal.to_string()),
            (Some(refusal), _) => decided(AutoShardPolicy::Data, refusal.to_string()),
            (None, Some(operation)) if !tensorflow => fall_back(format!(
                "\"{operation}\" has other results on some of the files than on all of \
                                   them"
            )),
            (None, _) => decided(AutoShardPolicy::File, "every worker gets separate files".into()),
        },
    }
}

/// The properties of a pipeline's sources that matter for sharding.
#[derive(Default)]
struct Sources {
    /// The number of files of the source that has the fewest; `None` if there is no source of files.
    files: Option<usize>,
    readers: usize,
    /// A description of a source that does not read files, if there is one.
    other: Option<String>,
    /// An operation that behaves differently on a shard, if there is one.
    whole: Option<String>,
    /// An operation to which files cannot be dealt, because it reads its input several times or keeps it for later
    /// passes; `None` if there is none.
    again: Option<String>,
}

impl Sources {
    fn of(pipeline: &Pipeline) -> Self {
        let mut sources = Sources::default();
        visit(pipeline, &mut |operation| {
            match operation.sharding() {
                Sharding::Files(n) => {
                    sources.files = Some(sources.files.map_or(n, |files| files.min(n)));
                    sources.readers += 1;
                }
                Sharding::Source => sources.other = Some(operation.describe()),
                Sharding::Whole => sources.whole = Some(operation.describe()),
                Sharding::Through => {}
            }
            if !operation.reads_once() {
                sources.again = Some(operation.describe());
            }
        });
        sources
    }

    /// Returns the reason why the files of the pipeline cannot be dealt, and the advice; `None` if they can be.
    fn why_not_dealt(&self) -> Option<String> {
        const INSTEAD: &str = "use AutoShardPolicy::Auto";
        if let Some(source) = &self.other {
            return Some(format!("{source} does not read files; {INSTEAD}"));
        }
        if self.readers != 1 {
            let readers = self.readers;
            return Some(format!("the dataset has {readers} sources of files instead of one; {INSTEAD}"));
        }
        if let Some(operation) = &self.again {
            return Some(format!(
                "\"{operation}\" reads its input again in the same pass or in later ones, but each pass deals the files \
                 again; leave it out (iterating again is the next epoch), or {INSTEAD}"
            ));
        }
        let whole = self.whole.as_ref()?;
        Some(format!("\"{whole}\" has other results on some of the files than on all of them; {INSTEAD}"))
    }

    /// Returns the reason why the pipeline cannot be sharded by files over this number of workers; `None` if it can be.
    fn refusal(&self, workers: usize) -> Option<Error> {
        match (&self.other, self.files) {
            (Some(source), _) => Some(Error::Unshardable { reader: source.clone() }),
            (None, None) => Some(Error::Unshardable { reader: "a dataset without a source".into() }),
            (None, Some(files)) if files < workers => Some(Error::TooFewFiles { files, workers }),
            _ => None,
        }
    }
}
