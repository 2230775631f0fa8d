//! The data that a process needs to connect to other processes of its job and to accept them.

// - INV-81: the task is proved with the secret, and refused if a certificate names others. If there is neither and
//   the system reports owners, only a process of the same user has one. Every job number leaves greater numbers for
//   later jobs, and a task of a job with another name is refused. Tests: `net/src/identity/tls/certified.rs`,
//   `net/tests/it/endpoint.rs`, `rpc/tests/it/calls.rs`, `ps-server/tests/it/service.rs`,
//   `coordinator/tests/it/remote.rs`.

use super::tls::{self, Certificate, Tls};
use super::{Identity, IdentityError, PolicyError, Protection, policy, user};
use crate::handshake::{Reason, Refusal};
use distribute_cluster::{Address, Task};
use ring::hmac;
use std::net::{IpAddr, TcpStream};

/// The credentials that a process uses on its connections, and its requirements for the other side. All processes of a
/// job create this value from the same addresses, so that all protect their connections in the same way.
#[derive(Clone, Debug)]
pub struct Access {
    /// The key with which a process proves that it knows the job's secret.
    pub(crate) key: Option<hmac::Key>,
    pub(crate) tls: Option<Tls>,
    plain_text_allowed: bool,
    /// Whether only the user of a process shows that the process belongs to the job.
    by_user: bool,
}

/// An error that prevents connections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Connections would be unprotected.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The secret or the certificates cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// The reason why the other side of a connection may not act as a task.
#[derive(Debug)]
pub(crate) enum VerifyError {
    /// The connection was closed before the other side's user was known.
    Ended,
    /// The other side is a different task, or does not belong to the job.
    Refused(Refusal),
}

impl Access {
    /// Creates the access of a process with the given identity, in a job whose processes are at `addresses`.
    /// `allow_plain_text` permits connections to other machines without encryption.
    ///
    /// # Errors
    /// - [`AccessError::Policy`]: connections would be unprotected.
    /// - [`AccessError::Identity`]: the secret or the certificates cannot be used.
    pub fn new(
        identity: &Identity,
        addresses: &[Address],
        allow_plain_text: bool,
    ) -> Result<Self, AccessError> {
        let protection = policy::protection(addresses, identity, allow_plain_text)?;
        let tls = match (identity, protection) {
            (Identity::Certificates(certificates), _) => Some(Tls::from_certificates(certificates)?),
            (Identity::Secret(secret), Protection::Tls) => Some(Tls::from_secret(secret)?),
            _ => None,
        };
        let key = match identity {
            Identity::Secret(secret) => Some(secret.proof_key()),
            _ => None,
        };
        // This is determined before any process can connect.
        let by_user = key.is_none() && tls.is_none() && !allow_plain_text && user::is_supported();
        Ok(Self { key, tls, plain_text_allowed: allow_plain_text, by_user })
    }

    /// Checks that the other side of a connection may act as a task: by its certificate if the certificate names tasks,
    /// or by the user of its process if there is no other evidence.
    ///
    /// # Errors
    /// Returns a [`VerifyError`] if the certificate cannot be read or names other tasks, if the process belongs to a
    /// different user, or if the connection was closed before the user was known.
    pub(crate) fn verify_peer(
        &self,
        socket: &TcpStream,
        certificate: Option<&Certificate>,
        task: &Task,
    ) -> Result<(), VerifyError> {
        if let Some(certificate) = certificate {
            return tls::check(certificate, task)
                .map_err(|text| VerifyError::Refused(Refusal::new(Reason::Certificate, text)));
        }
        if self.by_user {
            return user::check(socket).map_err(|unknown| match unknown {
                user::UserCheckError::Closed => VerifyError::Ended,
                user::UserCheckError::Other(text) => VerifyError::Refused(Refusal::new(Reason::User, text)),
            });
        }
        Ok(())
    }

    /// Returns whether a peer that passed [`verify_peer`](Self::verify_peer), and was then rejected for the given
    /// reason, certainly belongs to the job. Knowing only the user of its process is not enough to tell apart two jobs
    /// of one user. Without even that, every process counts as foreign.
    pub(crate) fn knows_members(&self, refused: Reason) -> bool {
        self.key.is_some() || self.tls.is_some() || (self.by_user && refused != Reason::Job)
    }

    /// Returns whether a connection to or from this address has the required protection. Check this after resolving a
    /// host name, which may yield a different kind of address than the name suggests.
    pub(crate) fn allows(&self, ip: IpAddr) -> bool {
        self.tls.is_some() || self.plain_text_allowed || ip.to_canonical().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Secret;
    use super::*;

    // INV-85
    #[test]
    fn who_is_of_the_job_for_sure_has_the_secret_or_is_of_the_same_user_and_job() {
        let near = ["127.0.0.1:1".parse().unwrap()];
        let knows = |identity: Identity, plain: bool| {
            let access = Access::new(&identity, &near, plain).unwrap();
            [Reason::Job, Reason::Cluster].map(|reason| access.knows_members(reason))
        };
        for plain in [false, true] {
            assert_eq!(knows(Identity::Secret(Secret::random().unwrap()), plain), [true, true]);
        }
        assert_eq!(knows(Identity::None, false), [false, user::is_supported()]);
        assert_eq!(knows(Identity::None, true), [false, false]);
    }
}
