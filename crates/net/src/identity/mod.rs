//! Who may join, and how links are protected.
//!
//! | module | what it is |
//! |---|---|
//! | [`secret`] | [`Secret`]: what all processes of one job know |
//! | [`certificates`] | [`Certificates`]: those that the user has made, by path |
//! | `tls` | the two sides of TLS from either |
//! | `certified` | the tasks that a certificate names |
//! | `user` | the user at the other end of a connection within this machine |
//! | `credentials`, `job` | [`Credentials`]: what the tasks of a job show each other, and the name of their job |
//! | [`policy`] | which protection links get: a pure table |
//! | [`access`] | [`Access`]: both together, for the connections of one process |

pub mod access;
pub mod certificates;
mod certified;
mod credentials;
mod job;
pub mod policy;
pub mod secret;
pub(crate) mod tls;
mod user;

pub(crate) use access::Doubt;
pub use access::{Access, AccessError};
pub use certificates::Certificates;
pub use credentials::Credentials;
pub use job::job_name;
pub use policy::{PolicyError, Protection};
pub use secret::Secret;

/// What a process shows to be one of the job.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Identity {
    /// Nothing. On loopback addresses only: where the system says whose process is at the other end, as Linux does, processes of this
    /// user may join; elsewhere whoever reaches the port may.
    #[default]
    None,
    /// The secret of the job. On loopback each side proves that it knows it; elsewhere links are encrypted, too, with
    /// certificates that each process makes from it.
    Secret(Secret),
    /// Certificates of the user. Links are encrypted, and whoever has a certificate of this CA may join, as one of the tasks that
    /// it [names](Certificates).
    Certificates(Certificates),
}

/// Why an identity can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file can't be read.
    #[error("the {what} cannot be read from {}: {source}", path.display())]
    File {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file holds nothing of that kind.
    #[error("{} holds no {what} as PEM: {reason}", path.display())]
    Pem {
        /// What should be in it.
        what: &'static str,
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        reason: String,
    },
    /// A secret is malformed.
    #[error(
        "the secret of the job in {origin} is not 64 hexadecimal digits; `openssl rand -hex 32` makes one"
    )]
    Secret {
        /// The environment variable or file.
        origin: String,
    },
    /// A secret that everybody knows.
    #[error(
        "the secret of the job in {origin} is nothing but zeros, which is no secret; `openssl rand -hex 32` makes one"
    )]
    Zeros {
        /// The environment variable or file.
        origin: String,
    },
    /// Certificates or keys that TLS can't use.
    #[error("these certificates cannot be used: {0}")]
    Tls(String),
    /// The system has no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}
