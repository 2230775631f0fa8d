//! The identities of processes, and the protection of links.
//!
//! | module | contents |
//! |---|---|
//! | [`secret`] | [`Secret`]: the secret that all processes of one job share |
//! | [`certificates`] | [`Certificates`]: the user's certificates, by path |
//! | `tls` | TLS, from a secret or certificates, and the tasks that a certificate names |
//! | `user` | the user at the other end of a connection within this machine |
//! | `credentials`, `job` | [`Credentials`]: the credentials of a job's tasks, and the name of their job |
//! | [`policy`] | the protection of links, as a pure table |
//! | [`access`] | [`Access`]: identity and protection for the connections of one process |

pub mod access;
pub mod certificates;
mod credentials;
mod job;
pub mod policy;
pub mod secret;
pub(crate) mod tls;
mod user;

pub(crate) use access::VerifyError;
pub use access::{Access, AccessError};
pub use certificates::Certificates;
pub use credentials::Credentials;
pub use job::job_name;
pub use policy::{PolicyError, Protection};
pub use secret::Secret;

/// The proof that a process belongs to the job.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Identity {
    /// No proof. This is only possible with loopback addresses, or if plain text is
    /// [allowed](Credentials::allow_plain_text_on_the_network). On loopback connections under Linux, only processes of
    /// the same user may join, unless plain text is allowed. In all other cases, any process that reaches the port may
    /// join.
    #[default]
    None,
    /// The secret of the job. Each side proves that it knows the secret. Links are also encrypted, with certificates
    /// that each process derives from the secret, unless all addresses are loopback addresses or plain text is allowed.
    Secret(Secret),
    /// Certificates. Links are encrypted, and any process with a certificate of the CA may join. It may act as the
    /// tasks that the certificate [names](Certificates) or, if it names none, as any task.
    Certificates(Certificates),
}

/// An error that prevents the use of an identity.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("the {what} cannot be read from {}: {source}", path.display())]
    File {
        /// The contents that the file should have, such as "private key".
        what: &'static str,
        /// The path of the file.
        path: std::path::PathBuf,
        /// The reason why the file cannot be read.
        source: std::io::Error,
    },
    /// A file does not contain the expected contents.
    #[error("{} holds no {what} as PEM: {reason}", path.display())]
    Pem {
        /// The contents that the file should have, such as "private key".
        what: &'static str,
        /// The path of the file.
        path: std::path::PathBuf,
        /// The error of the PEM parser.
        reason: String,
    },
    /// A secret is not 64 hexadecimal digits.
    #[error(
        "the secret of the job in {origin} is not 64 hexadecimal digits; `openssl rand -hex 32` makes one"
    )]
    Secret {
        /// The name of the environment variable, or the path of the file.
        origin: String,
    },
    /// All bytes of the secret are zeros.
    #[error(
        "the secret of the job in {origin} consists of zeros, which is not a secret; `openssl rand -hex \
         32` makes one"
    )]
    Zeros {
        /// The name of the environment variable, or the path of the file.
        origin: String,
    },
    /// TLS cannot use the certificates or keys.
    #[error("these certificates cannot be used: {0}")]
    Tls(String),
    /// Links need to be encrypted, and the program was built without the feature `tls`.
    #[error(
        "links between machines are encrypted, but this program was built without the feature `tls` of distribute: \
         enable it, or call `allow_plain_text_on_the_network` in a network that no one else can reach"
    )]
    NoTls,
    /// The operating system does not provide random numbers.
    #[error("the system provides no random numbers")]
    Random,
}
