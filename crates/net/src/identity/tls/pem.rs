//! Parsing of the PEM files in [`Certificates`].

use crate::identity::IdentityError;
use crate::identity::certificates::{Certificates, read_private, read_with_mode};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::path::Path;

/// The parsed certificates and key of a process.
pub(super) struct Loaded {
    pub roots: Vec<CertificateDer<'static>>,
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

/// Reads and parses the files with certificates and key.
///
/// # Errors
/// Returns an error if a file cannot be read, or does not contain the expected contents.
pub(super) fn load(files: &Certificates) -> Result<Loaded, IdentityError> {
    let key = read_private(&files.key, "private key")?;
    let pem = |what, path: &Path, error: rustls::pki_types::pem::Error| IdentityError::Pem {
        what,
        path: path.to_owned(),
        reason: error.to_string(),
    };
    Ok(Loaded {
        roots: certificates(&files.ca, "certificate of a CA")?,
        chain: certificates(&files.certificate, "certificate")?,
        key: PrivateKeyDer::from_pem_slice(&key).map_err(|error| pem("private key", &files.key, error))?,
    })
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let pem = |reason| IdentityError::Pem { what, path: path.to_owned(), reason };
    let (text, _) = read_with_mode(path, what)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Ok(all) if all.is_empty() => Err(pem("there is none".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(pem(error.to_string())),
    }
}
