//! TLS: the protection of links between machines. Builds without the feature `tls` cannot create it.
//!
//! | file | contents |
//! |---|---|
//! | `sides` | the two sides, from certificates or from the secret of the job |
//! | `session` | the bytes of a connection |
//! | `pem` | the contents of the user's certificates |
//! | `certified` | the tasks that a certificate names |
//! | `absent` | types without values that replace these in builds without the feature |

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(feature = "tls")]
mod certified;
#[cfg(feature = "tls")]
mod pem;
#[cfg(feature = "tls")]
mod session;
#[cfg(feature = "tls")]
mod sides;

#[cfg(not(feature = "tls"))]
pub(crate) use absent::{Certificate, Session, Tls, check};
#[cfg(feature = "tls")]
pub(crate) use {certified::check, session::Session, sides::Tls};

/// The certificate of a peer that was verified.
#[cfg(feature = "tls")]
pub(crate) type Certificate = rustls::pki_types::CertificateDer<'static>;
