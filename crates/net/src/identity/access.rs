//! The data that a process needs to connect to others of its job and to accept them.

use super::tls::Tls;
use super::{Identity, IdentityError, PolicyError, Protection, certified, policy, user};
use crate::handshake::{Reason, Refusal};
use distribute_cluster::{Address, Task};
use ring::hmac;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, TcpStream};

/// The credentials of a process on each of its connections, and its requirements on the other side. All
/// processes of a job create it from the same addresses, so that they agree on the protection of connections.
#[derive(Clone, Debug)]
pub struct Access {
    /// The key that proves knowledge of the job's secret.
    pub(crate) key: Option<hmac::Key>,
    pub(crate) tls: Option<Tls>,
    plain_text_allowed: bool,
    /// Whether the user of the other side is the only evidence that it belongs to the job.
    by_user: bool,
}

/// An error that prevents connections.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// Connections would be unprotected.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The secret or the certificates can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// The reason that the other side of a connection may not act as a task.
#[derive(Debug)]
pub(crate) enum Doubt {
    /// The connection was closed before the other side's user was known.
    Ended,
    /// It is another task, or does not belong to the job.
    Refused(Refusal),
}

impl Access {
    /// Creates the access of a process with this identity, in a job whose processes are at these addresses.
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
        let by_user = key.is_none() && tls.is_none() && !allow_plain_text && user::is_told();
        Ok(Self { key, tls, plain_text_allowed: allow_plain_text, by_user })
    }

    /// Checks that the other side of a connection may act as a task: by its certificate if that names tasks,
    /// or by its user if there is no other evidence.
    ///
    /// # Errors
    /// [`Doubt`] if the certificate names other tasks, the process is another user's, or the connection was
    /// closed before its user was known.
    pub(crate) fn vouch(
        &self,
        socket: &TcpStream,
        certificate: Option<&CertificateDer<'_>>,
        task: &Task,
    ) -> Result<(), Doubt> {
        if let Some(certificate) = certificate {
            return certified::check(certificate, task)
                .map_err(|text| Doubt::Refused(Refusal::new(Reason::Certificate, text)));
        }
        if self.by_user {
            return user::check(socket).map_err(|unknown| match unknown {
                user::Unknown::Closed => Doubt::Ended,
                user::Unknown::Other(text) => Doubt::Refused(Refusal::new(Reason::User, text)),
            });
        }
        Ok(())
    }

    /// Whether the other side of a connection surely belonged to the job. This side has
    /// [vouched](Self::vouch) for it and then refused it for the given reason. If only its user is known,
    /// another job of the same user counts as foreign. If not even that is known, every process does.
    pub(crate) fn knows_members(&self, refused: Reason) -> bool {
        self.key.is_some() || self.tls.is_some() || (self.by_user && refused != Reason::Job)
    }

    /// Whether connections to or from this address have the required protection. A host name may resolve to
    /// an address of another kind than it suggests.
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
        assert_eq!(knows(Identity::None, false), [false, user::is_told()]);
        assert_eq!(knows(Identity::None, true), [false, false]);
    }
}
