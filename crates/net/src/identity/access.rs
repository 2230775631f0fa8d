//! What a process needs to connect to others of its job, and to let them in.

use super::tls::Tls;
use super::{Identity, IdentityError, PolicyError, Protection, certified, policy, user};
use crate::handshake::{Reason, Refusal};
use distribute_cluster::{Address, Task};
use ring::hmac;
use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, TcpStream};

/// What a process shows others, and asks of them, on each of its connections. All processes of a job make it from the same
/// addresses, so that they agree on how connections are protected.
#[derive(Clone, Debug)]
pub struct Access {
    /// By which it proves that it knows the secret of the job.
    pub(crate) key: Option<hmac::Key>,
    pub(crate) tls: Option<Tls>,
    plain_text_allowed: bool,
    /// Whether nothing but the other side's user shows that it is of the job.
    by_user: bool,
}

/// Why connections can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// They would be unprotected.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The secret or the certificates can't be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// The reason that the other side of a connection may not speak for a task.
#[derive(Debug)]
pub(crate) enum Doubt {
    /// The connection has ended before it was known whose process is there.
    Ended,
    /// It is another task, or a stranger.
    Refused(Refusal),
}

impl Access {
    /// The access of a process of this identity in a job whose processes are at these addresses. `allow_plain_text` lets
    /// connections to other machines be made without encryption.
    ///
    /// # Errors
    /// [`AccessError`].
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
        // It is found out before anybody can connect.
        let by_user = key.is_none() && tls.is_none() && !allow_plain_text && user::is_told();
        Ok(Self { key, tls, plain_text_allowed: allow_plain_text, by_user })
    }

    /// Makes sure that the other side of a connection may speak for a task: by its certificate, where that names tasks, or by its
    /// user, where there is nothing else.
    ///
    /// # Errors
    /// [`Doubt`]: the certificate names others, the process is another user's, or the connection has ended before that was known.
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

    /// Whether the other side of a connection was of the job for sure, for which this side has [vouched](Self::vouch) and which it then refused
    /// for this reason. Where nothing but its user is known, another job of the same user is a stranger, and where not even that is, all are.
    pub(crate) fn knows_members(&self, refused: Reason) -> bool {
        self.key.is_some() || self.tls.is_some() || (self.by_user && refused != Reason::Job)
    }

    /// Whether connections to or at this address are protected as they have to be. A name may mean another address than it
    /// says.
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
