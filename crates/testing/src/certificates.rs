//! Certificates of a job, as files.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};

/// Makes a CA and a certificate that it has signed. Gives the files of the CA's certificate, the other one and its key.
pub fn certificates(folder: &Path, name: &str) -> [PathBuf; 3] {
    let ca_key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let task = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
    let certificate = task.signed_by(&key, &Issuer::new(params, ca_key)).unwrap();
    [("ca", ca.pem()), ("certificate", certificate.pem()), ("key", key.serialize_pem())].map(|(what, pem)| {
        let path = folder.join(format!("{name}-{what}.pem"));
        std::fs::write(&path, pem).unwrap();
        path
    })
}
