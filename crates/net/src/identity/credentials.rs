//! The credentials of the tasks of a job.

use super::{Access, AccessError, Certificates, Identity, Secret, job_name};
use distribute_cluster::Address;

/// The credentials with which a task connects to other tasks of its job.
///
/// They consist of a secret or certificates, the name of the job, and whether links between machines may be
/// unencrypted. One value serves all servers, clients and strategies of a task.
///
/// ```
/// use distribute_net::{Credentials, Secret};
///
/// let job = Credentials::new().secret(Secret::random()?).allow_plain_text_on_the_network();
/// assert!(format!("{job:?}").contains("Secret(hidden)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The identity of this process; `None` means that the secret in the environment is used, if there is one.
    identity: Option<Identity>,
    allow_plain_text: bool,
    job: Job,
}

/// The job to which connections belong.
#[derive(Clone, Debug, Default)]
enum Job {
    /// The job of this process.
    #[default]
    Own,
    Named(String),
    Any,
}

impl Credentials {
    /// Creates credentials that use the secret in `DISTRIBUTE_SECRET`, if it is set. By default, links between machines
    /// must be encrypted.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses certificates instead of a secret. `DISTRIBUTE_SECRET` is then ignored.
    pub fn certificates(self, certificates: Certificates) -> Self {
        Self { identity: Some(Identity::Certificates(certificates)), ..self }
    }

    /// Sets the secret of the job. `DISTRIBUTE_SECRET` is then ignored.
    pub fn secret(self, secret: Secret) -> Self {
        Self { identity: Some(Identity::Secret(secret)), ..self }
    }

    /// Permits links between machines without encryption. Anyone on the route can then read and change the data, even
    /// if a secret prevents others from joining. Use this only in networks that no one else can reach.
    pub fn allow_plain_text_on_the_network(self) -> Self {
        Self { allow_plain_text: true, ..self }
    }

    /// Sets the name of the job, which is the same for all of its tasks. A task of a different job that connects to an
    /// address of this job is rejected, even without a secret. The default is the value of `DISTRIBUTE_JOB` or, if that
    /// is not set, the file name of the program.
    pub fn job(self, name: impl Into<String>) -> Self {
        Self { job: Job::Named(name.into()), ..self }
    }

    /// Allows calls to servers of a job with any name.
    #[doc(hidden)]
    pub fn any_job(self) -> Self {
        Self { job: Job::Any, ..self }
    }

    /// Returns the name of the job: see [`job`](Self::job). The name is empty if jobs with any name may be called.
    pub fn job_name(&self) -> String {
        match &self.job {
            Job::Own => job_name(),
            Job::Named(name) => name.clone(),
            Job::Any => String::new(),
        }
    }

    /// Returns the identity of this process. If none was set, the identity is the secret in `DISTRIBUTE_SECRET`, or
    /// [`Identity::None`] without that variable.
    ///
    /// # Errors
    /// - [`AccessError::Identity`]: the environment variable does not contain a valid secret.
    pub fn identity(&self) -> Result<Identity, AccessError> {
        match &self.identity {
            Some(identity) => Ok(identity.clone()),
            None => Ok(Secret::from_env()?.map_or(Identity::None, Identity::Secret)),
        }
    }

    /// Returns what is needed for connections among the tasks at the given addresses. All tasks must pass the same
    /// addresses, so that they protect connections in the same way.
    ///
    /// # Errors
    /// - [`AccessError::Policy`]: connections would be unprotected.
    /// - [`AccessError::Identity`]: the secret or the certificates cannot be used.
    pub fn access<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a Address>,
    ) -> Result<Access, AccessError> {
        let addresses: Vec<_> = addresses.into_iter().cloned().collect();
        Access::new(&self.identity()?, &addresses, self.allow_plain_text)
    }
}

/// Converts an identity to credentials that ignore the secret in the environment.
impl From<Identity> for Credentials {
    fn from(identity: Identity) -> Self {
        Self { identity: Some(identity), ..Self::default() }
    }
}
