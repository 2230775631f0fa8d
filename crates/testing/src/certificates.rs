//! The certificates of a job, created as files.

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use std::path::{Path, PathBuf};

/// Creates a CA and a certificate signed by it, for the host `{name}.example`, as files in `folder`. Returns the paths
/// of the CA's certificate, the certificate and its key.
pub fn certificates(folder: &Path, name: &str) -> [PathBuf; 3] {
    let [files] = certificates_of(folder, [(name, None)]);
    files
}

/// Creates a CA and certificates signed by it, as files in `folder`. Each owner consists of a name, for the files and
/// the host `{name}.example`, and optionally of the task that the certificate names, such as `ps/0`. Returns, for each
/// owner, the paths of the CA's certificate, the certificate and its key.
pub fn certificates_of<const N: usize>(
    folder: &Path,
    owners: [(&str, Option<&str>); N],
) -> [[PathBuf; 3]; N] {
    let ca_key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    owners.map(|(name, task)| {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut own = CertificateParams::new(vec![format!("{name}.example")]).unwrap();
        let uri = task.map(|task| SanType::URI(format!("distribute:{task}").try_into().unwrap()));
        own.subject_alt_names.extend(uri);
        let certificate = own.signed_by(&key, &issuer).unwrap();
        let key = key.serialize_der();
        let files = [
            ("ca", "CERTIFICATE", &ca.der()[..]),
            ("certificate", "CERTIFICATE", certificate.der()),
            ("key", "PRIVATE KEY", &key),
        ];
        files.map(|(what, label, der)| {
            let path = folder.join(format!("{name}-{what}.pem"));
            std::fs::write(&path, pem(label, der)).unwrap();
            path
        })
    })
}

/// Encodes PEM, as rcgen does with its feature `pem`. With that feature, the crates that depend on `distribute-net`
/// would have to be built again only for these tests.
fn pem(label: &str, der: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let quads = der.chunks(3).map(|bytes| {
        let bits = (0..3).fold(0u32, |bits, i| bits << 8 | u32::from(*bytes.get(i).unwrap_or(&0)));
        let digit =
            |i| if i <= bytes.len() { DIGITS[(bits >> (18 - 6 * i)) as usize & 63].into() } else { '=' };
        [digit(0), digit(1), digit(2), digit(3)]
    });
    let quads: Vec<_> = quads.collect();
    let lines: Vec<String> = quads.chunks(16).map(|quads| quads.iter().flatten().collect()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
