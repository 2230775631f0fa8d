//! Fetching what has changed of variables, all at once.

use super::links::{Ask, unexpected};
use super::{Sharded, Staged, Underway};
use distribute_base::Result;
use distribute_base::internal::{lock, put};
use distribute_params::Response;

/// A variable on servers, and where candle computes with it.
pub(crate) type OnBoth<'a> = (&'a Sharded, &'a Staged);

/// What has changed of some variables, asked for.
pub struct Pull {
    /// Which of the variables are fetched.
    whole: Vec<usize>,
    answers: Underway,
}

impl Pull {
    /// Asks for what has changed. `None` where there is nothing to be fetched.
    pub fn start(variables: &[OnBoth<'_>]) -> Option<Self> {
        let whole: Vec<usize> =
            (0..variables.len()).filter(|number| variables[*number].1.is_whole()).collect();
        let links = variables[*whole.first()?].0.links();
        let reads = |number: &usize| {
            let (sharded, staged) = variables[*number];
            sharded.reads(&lock(&staged.known))
        };
        let asks: Vec<Ask> = whole.iter().flat_map(reads).collect();
        let answers = links.start(asks);
        Some(Self { whole, answers })
    }

    /// Writes what has come of the same variables. Nobody may be computing with them.
    ///
    /// # Errors
    /// Of a server that has not answered. Then none has changed, unless it is memory that fails.
    pub fn finish(self, operation: &'static str, variables: &[OnBoth<'_>]) -> Result<()> {
        let mut answers = self.answers.wait(operation)?.into_iter();
        let mut changes = Vec::new();
        for number in &self.whole {
            let (sharded, staged) = variables[*number];
            let mut before = 0;
            for (i, shard) in sharded.shards().iter().enumerate() {
                match answers.next() {
                    Some(Response::Unchanged) => before += sharded.elements_of(i),
                    Some(Response::Value(found)) => {
                        let value = sharded.fits(operation, shard, found.value)?;
                        let len = value.len();
                        changes.push(((sharded, staged), i, before, found.version, value));
                        before += len;
                    }
                    other => {
                        return Err(unexpected(operation, shard.server, &other.unwrap_or(Response::Done)));
                    }
                }
            }
        }
        for ((sharded, staged), i, at, version, value) in changes {
            let mut known = lock(&staged.known);
            known.resize(sharded.shards().len(), None);
            // Should memory fail, it is fetched again.
            known[i] = None;
            let written = put(staged.var(), at, &value);
            staged.written();
            written?;
            known[i] = Some(version);
        }
        self.whole.iter().for_each(|number| variables[*number].1.fill());
        Ok(())
    }
}

/// Fetches what has changed of some variables. Nobody may be computing with them.
///
/// # Errors
/// Those of [`Pull::finish`].
pub fn pull(operation: &'static str, variables: &[OnBoth<'_>]) -> Result<()> {
    Pull::start(variables).map_or(Ok(()), |pull| pull.finish(operation, variables))
}
