//! Options of communication.

use distribute_base::{Error, Result};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Options for the replicas' collectives. They are set for a strategy or, with `ReplicaContext::with_options`, for the
/// calls on one view of a context. Results are bit-identical for all options.
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::strategy::CommunicationOptions;
/// use std::time::Duration;
/// let options = CommunicationOptions { bytes_per_pack: 1 << 20, ..Default::default() };
/// let strategy =
///     MirroredStrategy::builder().devices(["cpu:0", "cpu:1"]).communication_options(options).build()?;
/// let sums = strategy.run((), |ctx, ()| {
///     let patient = CommunicationOptions { timeout: Some(Duration::from_secs(600)), ..Default::default() };
///     ctx.with_options(patient)?.all_reduce(ReduceOp::Sum, vec![1f32, 2.])
/// })?;
/// assert_eq!(sums.values(), [[2., 4.], [2., 4.]]);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.distribute.experimental.CommunicationOptions")]
#[doc(alias = "tf.distribute.experimental.CollectiveHints")]
#[doc(alias = "CollectiveHints")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommunicationOptions {
    /// The approximate size in bytes of the buckets in which the values of one `all_reduce` with the same dtype are
    /// reduced together. With 0, the default, each value is reduced separately, which is fastest for replicas that
    /// share memory.
    pub bytes_per_pack: usize,
    /// The maximum time that a replica waits in one call for the other replicas of all workers. `None` keeps the
    /// strategy's timeout, 60 s by default.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Option<Duration>,
    /// The transport with which values are exchanged.
    pub implementation: CommunicationImplementation,
}

impl CommunicationOptions {
    /// Returns these options, with each option that is at its default replaced by that of `base`.
    pub fn over(self, base: Self) -> Self {
        Self {
            bytes_per_pack: if self.bytes_per_pack > 0 { self.bytes_per_pack } else { base.bytes_per_pack },
            timeout: self.timeout.or(base.timeout),
            implementation: match self.implementation {
                CommunicationImplementation::Auto => base.implementation,
                set => set,
            },
        }
    }

    /// Returns a description of the problem with these options: a timeout of zero, or an implementation that replicas
    /// of one process do not support. Returns `None` if there is no problem.
    #[doc(hidden)]
    pub fn fault(&self) -> Option<String> {
        if self.timeout == Some(Duration::ZERO) {
            let reason = "a timeout of zero expires before any other replica can arrive; leave it out to use the \
                          strategy's, or use Duration::MAX for no timeout";
            return Some(reason.into());
        }
        match self.implementation {
            CommunicationImplementation::Auto => None,
            other => Some(format!(
                "CommunicationImplementation {other}: replicas of one process exchange values in shared memory, and \
                 links between workers are chosen when they join: RING, for sockets, in \
                 MultiWorkerMirroredStrategy::builder; use AUTO here"
            )),
        }
    }

    /// Checks these options.
    ///
    /// # Errors
    /// - [`Error::InvalidArgument`]: the options have a [`fault`](Self::fault).
    #[doc(hidden)]
    pub fn check(&self, operation: &'static str) -> Result<()> {
        self.fault().map_or(Ok(()), |fault| Err(Error::invalid(operation, fault)))
    }
}

/// The transport of the values in a collective.
///
/// Replicas of one process exchange values in shared memory, as do workers that are threads of one process. Workers in
/// separate processes use shared memory if possible, otherwise sockets. They use only sockets if [`Ring`](Self::Ring)
/// is passed to `MultiWorkerMirroredStrategyBuilder::communication_options`. All other combinations are rejected with
/// [`Error::InvalidArgument`] by `MirroredStrategyBuilder::build`, `on_threads_with`, `Strategy::new` and
/// `ReplicaContext::with_options`.
#[doc(alias = "tf.distribute.experimental.CommunicationImplementation")]
#[doc(alias = "tf.distribute.experimental.CollectiveCommunication")]
#[doc(alias = "CollectiveCommunication")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CommunicationImplementation {
    /// The transport is chosen automatically.
    #[doc(alias = "tf.distribute.experimental.CommunicationImplementation.AUTO")]
    #[default]
    Auto,
    /// Values are exchanged over sockets.
    #[doc(alias = "tf.distribute.experimental.CommunicationImplementation.RING")]
    Ring,
    /// Values are exchanged between GPUs with NVIDIA's NCCL.
    #[doc(alias = "tf.distribute.experimental.CommunicationImplementation.NCCL")]
    Nccl,
}

impl fmt::Display for CommunicationImplementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommunicationImplementation::Auto => "AUTO",
            CommunicationImplementation::Ring => "RING",
            CommunicationImplementation::Nccl => "NCCL",
        })
    }
}

/// Parses the names that [`Display`](fmt::Display) prints, ignoring case.
impl FromStr for CommunicationImplementation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::Auto, Self::Ring, Self::Nccl];
        all.into_iter().find(|one| one.to_string().eq_ignore_ascii_case(name)).ok_or_else(|| {
            Error::invalid(
                "CommunicationImplementation",
                format!("{name:?} is not a valid implementation; use AUTO, RING or NCCL"),
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CommunicationImplementation::{Auto, Nccl, Ring};

    #[test]
    fn co_1_names_are_read_in_any_case_and_others_are_refused() {
        for (name, one) in [("AUTO", Auto), ("ring", Ring), ("Nccl", Nccl)] {
            assert_eq!(name.parse::<CommunicationImplementation>().unwrap(), one);
            assert_eq!(one.to_string(), name.to_ascii_uppercase());
        }
        let error = "FOO".parse::<CommunicationImplementation>().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(error.to_string().contains("\"FOO\"") && error.to_string().contains("RING"), "{error}");
    }

    #[test]
    fn co_2_set_options_override_the_base() {
        let second = Some(Duration::from_secs(1));
        let base = CommunicationOptions { bytes_per_pack: 8, timeout: second, implementation: Ring };
        let none = CommunicationOptions::default();
        assert_eq!(none, CommunicationOptions { bytes_per_pack: 0, timeout: None, implementation: Auto });
        assert_eq!(none.over(base), base);
        assert_eq!(base.over(none), base);
        let minute = Some(Duration::from_secs(60));
        let other = CommunicationOptions { bytes_per_pack: 16, timeout: minute, implementation: Nccl };
        assert_eq!(other.over(base), other);
        assert_eq!(
            CommunicationOptions { timeout: minute, ..none }.over(base),
            CommunicationOptions { timeout: minute, ..base }
        );
    }

    #[test]
    fn co_3_implementations_that_one_process_lacks_are_refused_by_name() {
        for implementation in [Ring, Nccl] {
            let options = CommunicationOptions { implementation, ..Default::default() };
            let error = options.check("here").unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { operation: "here", .. }), "{error}");
            assert!(error.to_string().contains(&format!("CommunicationImplementation {implementation}:")));
        }
        CommunicationOptions::default().check("here").unwrap();
    }

    #[test]
    fn co_6_a_timeout_of_zero_is_refused_with_why() {
        let options = CommunicationOptions { timeout: Some(Duration::ZERO), ..Default::default() };
        let error = options.check("here").unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { operation: "here", .. }), "{error}");
        assert!(error.to_string().contains("before any other replica"), "{error}");
        CommunicationOptions { timeout: Some(Duration::MAX), ..options }.check("here").unwrap();
    }
}
