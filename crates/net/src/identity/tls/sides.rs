//! The two sides of TLS, which verify each other, from certificates or from the secret of the job.

use super::pem::load;
use super::session::Session;
use crate::identity::{Certificates, IdentityError, Secret};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig, ServerConnection,
    SignatureScheme, version::TLS13,
};
use std::io;
use std::sync::Arc;

/// The name in every generated certificate. It is not checked, because the signature decides who may join.
const NAME: &str = "worker.distribute.internal";

/// The start of an Ed25519 key in PKCS #8 (RFC 8410). The 32 bytes of the seed follow.
const PKCS8: [u8; 16] = [0x30, 0x2e, 0x02, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

/// The configuration of TLS 1.3 as client and as server. Each side verifies the other.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    /// Creates both configurations from certificates in files.
    ///
    /// # Errors
    /// Returns an error if the certificates or the key cannot be loaded, or are not valid for TLS.
    pub fn from_certificates(certificates: &Certificates) -> Result<Self, IdentityError> {
        let loaded = load(certificates)?;
        Self::new(loaded.roots, loaded.chain, loaded.key)
    }

    /// Creates both configurations with a new certificate for this process. The certificate is signed by a CA whose key
    /// all processes derive from the secret.
    ///
    /// # Errors
    /// Returns [`IdentityError::Tls`] if a certificate cannot be created.
    pub fn from_secret(secret: &Secret) -> Result<Self, IdentityError> {
        let (ca, chain, key) = generate(secret).map_err(|error| IdentityError::Tls(error.to_string()))?;
        Self::new(vec![ca], vec![chain], key)
    }

    fn new(
        ca: Vec<CertificateDer<'static>>,
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let error = |error: &dyn std::fmt::Display| IdentityError::Tls(error.to_string());
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in ca {
            roots.add(certificate).map_err(|e| error(&e))?;
        }
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|e| error(&e))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| error(&e))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|e| error(&e))?;
        // Each pair connects once, so no session is resumed.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(|e| error(&e))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(SignedByCa { roots, provider }))
            .with_client_auth_cert(chain, key)
            .map_err(|e| error(&e))?;
        client.resumption = Resumption::disabled();
        Ok(Self { client: Arc::new(client), server: Arc::new(server) })
    }

    /// Creates the session of the side that has connected, which is TLS's client.
    pub fn client(&self) -> io::Result<Session> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let connection = ClientConnection::new(self.client.clone(), name).map_err(io::Error::other)?;
        Ok(Session::new(connection.into()))
    }

    /// Creates the session of the side that was connected to, which is TLS's server.
    pub fn server(&self) -> io::Result<Session> {
        let connection = ServerConnection::new(self.server.clone()).map_err(io::Error::other)?;
        Ok(Session::new(connection.into()))
    }
}

/// Creates a certificate for this process, signed by the job's CA. Returns the CA's certificate, the process's
/// certificate, and its key.
fn generate(
    secret: &Secret,
) -> Result<(CertificateDer<'static>, CertificateDer<'static>, PrivateKeyDer<'static>), rcgen::Error> {
    let mut pkcs8 = PKCS8.to_vec();
    pkcs8.extend_from_slice(&secret.derive(b"distribute ca"));
    let pkcs8 = PrivatePkcs8KeyDer::from(pkcs8);
    let ca_key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &rcgen::PKCS_ED25519)?;
    let mut params = CertificateParams::new(Vec::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.distinguished_name.push(DnType::CommonName, "distribute job");
    let ca = params.self_signed(&ca_key)?;

    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519)?;
    let mut worker = CertificateParams::new(vec![NAME.to_owned()])?;
    worker.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = worker.signed_by(&key, &Issuer::new(params, ca_key))?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok((ca.der().clone(), certificate.der().clone(), key.into()))
}

/// A verifier that accepts any certificate signed by the CA and ignores the name in it. The CA signs only for workers
/// of one job, which have no fixed names or addresses. Servers verify their clients in the same way.
#[derive(Debug)]
struct SignedByCa {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SignedByCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let certificate = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
