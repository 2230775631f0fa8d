//! The setting of checksums, from the program or the environment.

use super::builder::MultiWorkerMirroredStrategyBuilder;
use distribute_base::{Error, Result};
use distribute_collective::group::Group;
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

/// The setting of checksums, by its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ChecksumSetting {
    /// The setting of the program, which takes precedence over that of a group.
    Program(Checksums),
    /// The setting of the environment, which applies if neither the program nor the group has one.
    Environment(Checksums),
    Unset,
}

impl ChecksumSetting {
    /// Reads the setting of the environment, unless the program has one.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the environment variable is malformed.
    pub(super) fn resolve(of_program: Option<Checksums>) -> Result<Self> {
        Self::choose(of_program, || std::env::var(VARIABLE).ok())
    }

    fn choose(of_program: Option<Checksums>, variable: impl FnOnce() -> Option<String>) -> Result<Self> {
        if let Some(checksums) = of_program {
            return Ok(Self::Program(checksums));
        }
        let Some(text) = variable() else { return Ok(Self::Unset) };
        text.parse().map(Self::Environment).map_err(|error| {
            let reason = format!("{VARIABLE} is {text:?}: {error}");
            Error::invalid("MultiWorkerMirroredStrategy", reason)
        })
    }

    /// Returns the group with this setting.
    pub(super) fn apply(self, group: Group) -> Group {
        match self {
            Self::Program(checksums) => group.checksums(checksums),
            Self::Environment(checksums) => group.default_checksums(checksums),
            Self::Unset => group,
        }
    }

    /// Returns the checksums of a group without a setting of its own.
    pub(super) fn checksums(self) -> Checksums {
        match self {
            Self::Program(checksums) | Self::Environment(checksums) => checksums,
            Self::Unset => Checksums::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_counts_more_than_the_environment() {
        let choose = |program, variable: Option<&str>| {
            ChecksumSetting::choose(program, || variable.map(str::to_owned))
        };
        assert_eq!(choose(None, None).unwrap(), ChecksumSetting::Unset);
        let never = choose(None, Some("never")).unwrap();
        assert_eq!(
            (never, never.checksums()),
            (ChecksumSetting::Environment(Checksums::Never), Checksums::Never)
        );
        let always = choose(Some(Checksums::Always), Some("never")).unwrap();
        assert_eq!(
            (always, always.checksums()),
            (ChecksumSetting::Program(Checksums::Always), Checksums::Always)
        );
        let error = choose(None, Some("1")).unwrap_err().to_string();
        assert!(error.contains("DISTRIBUTE_CHECKSUMS is \"1\""), "{error}");
    }
}
