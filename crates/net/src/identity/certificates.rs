//! Certificates that the user has made.

use super::IdentityError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The longest file of certificates, keys or a secret that is read.
const LONGEST: u64 = 1 << 20;

/// Files with certificates and a key, as PEM.
///
/// Every worker whose certificate the CA has signed may join, whatever its name is: use a CA of this job or cluster alone.
///
/// A certificate can say which task its owner is, by a URI among its alternative names: `distribute:ps/0`, or several of them.
/// Its owner can then speak for no other task. One without such a URI can speak for any.
///
/// Certificates that are restricted by purpose need both, `serverAuth` and `clientAuth`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificates {
    /// The certificates of those whose signatures count.
    pub ca: PathBuf,
    /// The certificate of this process, and those between it and the CA.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
}

/// What is in the files.
pub(super) struct Loaded {
    pub roots: Vec<CertificateDer<'static>>,
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
}

impl Certificates {
    pub(super) fn load(&self) -> Result<Loaded, IdentityError> {
        let key = read(&self.key, "private key")?;
        let pem = |what, path: &Path, error: rustls::pki_types::pem::Error| IdentityError::Pem {
            what,
            path: path.to_owned(),
            reason: error.to_string(),
        };
        Ok(Loaded {
            roots: certificates(&self.ca, "certificate of a CA")?,
            chain: certificates(&self.certificate, "certificate")?,
            key: PrivateKeyDer::from_pem_slice(&key).map_err(|error| pem("private key", &self.key, error))?,
        })
    }
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let pem = |reason| IdentityError::Pem { what, path: path.to_owned(), reason };
    let text = read(path, what)?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Ok(all) if all.is_empty() => Err(pem("there is none".to_owned())),
        Ok(all) => Ok(all),
        Err(error) => Err(pem(error.to_string())),
    }
}

/// Reads a small file.
pub(super) fn read(path: &Path, what: &'static str) -> Result<Vec<u8>, IdentityError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LONGEST).read_to_end(&mut bytes));
    read.map_err(|source| IdentityError::File { what, path: path.to_owned(), source })?;
    Ok(bytes)
}
