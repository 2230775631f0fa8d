//! What a process needs to connect to others of its job, and to let them in.

use super::tls::Tls;
use super::{Identity, IdentityError, PolicyError, Protection, policy};
use distribute_cluster::Address;
use ring::hmac;
use std::net::IpAddr;

/// What a process shows others, and asks of them, on each of its connections. All processes of a job make it from the same
/// addresses, so that they agree on how connections are protected.
#[derive(Clone, Debug)]
pub struct Access {
    /// By which it proves that it knows the secret of the job.
    pub(crate) key: Option<hmac::Key>,
    pub(crate) tls: Option<Tls>,
    plain_text_allowed: bool,
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
        Ok(Self { key, tls, plain_text_allowed: allow_plain_text })
    }

    /// Whether connections to or at this address are protected as they have to be. A name may mean another address than it
    /// says.
    pub(crate) fn allows(&self, ip: IpAddr) -> bool {
        self.tls.is_some() || self.plain_text_allowed || ip.to_canonical().is_loopback()
    }
}
