//! The setting of checksums, from the program or the environment.

use super::builder::MultiWorkerMirroredStrategyBuilder;
use distribute_base::{Error, Result};
use distribute_core::strategy::Checksums;

const VARIABLE: &str = "DISTRIBUTE_CHECKSUMS";

impl MultiWorkerMirroredStrategyBuilder {
    /// Sets the links on which messages between workers have [checksums](Checksums): by default those to other
    /// machines. Data whose checksum does not match is not used. All workers get an error that names the sender, the
    /// receiver and the data, and a `Training` re-forms the group and repeats the step. The setting must be the same on
    /// all workers.
    ///
    /// The default can be set with the environment variable `DISTRIBUTE_CHECKSUMS`: `auto`, `always` or `never`.
    ///
    /// ```
    /// # use distribute::prelude::*;
    /// # use distribute::cluster::{ClusterSpec, Job, resolver::SimpleClusterResolver};
    /// # let cluster: ClusterSpec = r#"{"worker": ["localhost:0"]}"#.parse()?;
    /// # let resolver = SimpleClusterResolver::new(cluster).with_task(Job::Worker.task(0));
    /// use distribute::strategy::Checksums;
    /// let builder = MultiWorkerMirroredStrategy::builder().cluster_resolver(resolver);
    /// let strategy = builder.checksums(Checksums::Always).build()?;
    /// # Ok::<(), distribute::Error>(())
    /// ```
    pub fn checksums(mut self, checksums: Checksums) -> Self {
        self.checksums = Some(checksums);
        self
    }
}

/// Returns the setting of the program, or else that of the environment; `None` if neither is set.
pub(super) fn checksums(of_program: Option<Checksums>) -> Result<Option<Checksums>> {
    choose(of_program, std::env::var(VARIABLE).ok())
}

fn choose(of_program: Option<Checksums>, variable: Option<String>) -> Result<Option<Checksums>> {
    match (of_program, variable) {
        (Some(checksums), _) => Ok(Some(checksums)),
        (None, None) => Ok(None),
        (None, Some(text)) => text.parse().map(Some).map_err(|error| {
            let reason = format!("{VARIABLE} is {text:?}: {error}");
            Error::invalid("MultiWorkerMirroredStrategy", reason)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_counts_more_than_the_environment() {
        assert_eq!(choose(None, None).unwrap(), None);
        assert_eq!(choose(None, Some("never".into())).unwrap(), Some(Checksums::Never));
        assert_eq!(choose(Some(Checksums::Always), Some("never".into())).unwrap(), Some(Checksums::Always));
        let error = choose(None, Some("1".into())).unwrap_err().to_string();
        assert!(error.contains("DISTRIBUTE_CHECKSUMS is \"1\""), "{error}");
    }
}
