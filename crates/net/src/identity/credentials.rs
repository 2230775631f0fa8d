//! How the tasks of a job know each other.

use super::{Access, AccessError, Certificates, Identity, Secret, job_name};
use distribute_cluster::Address;

/// The way in which the tasks of a job know each other, the name of the job, and whether links between machines are protected: one
/// value for all that a task opens, be it a server, a client or a strategy.
///
/// ```
/// use distribute_net::{Credentials, Secret};
///
/// let job = Credentials::new().secret(Secret::random()?).allow_plain_text_on_the_network();
/// assert!(job.allows_plain_text() && format!("{job:?}").contains("Secret(hidden)"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// Without, the secret of the environment, if there is one.
    identity: Option<Identity>,
    allow_plain_text: bool,
    job: Job,
}

/// The job that connections are for.
#[derive(Clone, Debug, Default)]
enum Job {
    /// The job of this process.
    #[default]
    Own,
    Named(String),
    Any,
}

impl Credentials {
    /// The secret in `DISTRIBUTE_SECRET`, if there is one; links between machines are protected.
    pub fn new() -> Self {
        Self::default()
    }

    /// Certificates: the CA's, this process's, and its key, as PEM files.
    pub fn certificates(self, certificates: Certificates) -> Self {
        Self { identity: Some(Identity::Certificates(certificates)), ..self }
    }

    /// The secret of the job, if it isn't in `DISTRIBUTE_SECRET`.
    pub fn secret(self, secret: Secret) -> Self {
        Self { identity: Some(Identity::Secret(secret)), ..self }
    }

    /// Lets links between machines go without encryption: everybody on the way can read and write what is sent, also where a secret keeps
    /// strangers from joining. For networks that nobody else can reach.
    pub fn allow_plain_text_on_the_network(self) -> Self {
        Self { allow_plain_text: true, ..self }
    }

    /// The name of the job, the same for all of its tasks: a task of another one that comes to an address of this job is refused, even
    /// without a secret. By default it is the one in `DISTRIBUTE_JOB` or, without that, the name of the program's file.
    pub fn job(self, name: impl Into<String>) -> Self {
        Self { job: Job::Named(name.into()), ..self }
    }

    /// Calls servers of a job whatever its name is.
    #[doc(hidden)]
    pub fn any_job(self) -> Self {
        Self { job: Job::Any, ..self }
    }

    /// The name of the job that the tasks of this process are of: see [`job`](Self::job).
    pub fn job_name(&self) -> String {
        match &self.job {
            Job::Own => job_name(),
            Job::Named(name) => name.clone(),
            Job::Any => String::new(),
        }
    }

    /// What this process shows, the secret of the environment included.
    ///
    /// # Errors
    /// Where that is no secret.
    pub fn identity(&self) -> Result<Identity, AccessError> {
        match &self.identity {
            Some(identity) => Ok(identity.clone()),
            None => Ok(Secret::from_env()?.map_or(Identity::None, Identity::Secret)),
        }
    }

    /// Whether links between machines may go without encryption.
    pub fn allows_plain_text(&self) -> bool {
        self.allow_plain_text
    }

    /// The access to the tasks at these addresses. All of them protect connections alike, since they know the same addresses.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn access<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a Address>,
    ) -> Result<Access, AccessError> {
        let addresses: Vec<_> = addresses.into_iter().cloned().collect();
        Access::new(&self.identity()?, &addresses, self.allow_plain_text)
    }
}

/// What this process shows to be one of the job, and asks of others, whatever the environment says.
impl From<Identity> for Credentials {
    fn from(identity: Identity) -> Self {
        Self { identity: Some(identity), ..Self::default() }
    }
}
