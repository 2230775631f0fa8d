//! TLS in builds without the feature `tls`. There are no values of these types, so nothing can be sent in plain text
//! that should be encrypted.

use crate::identity::{Certificates, IdentityError, Secret};
use distribute_cluster::Task;
use std::io::{self, IoSlice};
use std::net::TcpStream;

#[derive(Clone, Debug)]
pub(crate) enum Tls {}

#[derive(Debug)]
pub(crate) enum Session {}

#[derive(Debug)]
pub(crate) enum Certificate {}

impl Tls {
    pub fn from_certificates(_: &Certificates) -> Result<Self, IdentityError> {
        Err(IdentityError::NoTls)
    }

    pub fn from_secret(_: &Secret) -> Result<Self, IdentityError> {
        Err(IdentityError::NoTls)
    }

    pub fn client(&self) -> io::Result<Session> {
        match *self {}
    }

    pub fn server(&self) -> io::Result<Session> {
        match *self {}
    }
}

impl Session {
    pub(crate) fn certificate(&self) -> Option<&Certificate> {
        match *self {}
    }

    pub(crate) fn has_unread(&self) -> bool {
        match *self {}
    }

    pub(crate) fn has_unsent(&self) -> bool {
        match *self {}
    }

    pub(crate) fn has_begun(&self) -> bool {
        match *self {}
    }

    pub(crate) fn finish(&mut self, _: &TcpStream) {
        match *self {}
    }

    pub(crate) fn read(&mut self, _: &TcpStream, _: &mut [u8]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn write(&mut self, _: &TcpStream, _: &[IoSlice<'_>]) -> io::Result<usize> {
        match *self {}
    }

    pub(crate) fn flush(&mut self, _: &TcpStream) -> io::Result<()> {
        match *self {}
    }
}

pub(crate) fn check(certificate: &Certificate, _: &Task) -> Result<(), String> {
    match *certificate {}
}

#[cfg(test)]
mod tests {
    use crate::identity::{Access, AccessError, Identity};

    use super::*;

    #[test]
    fn what_needs_tls_is_an_error_without_it() {
        let far = ["192.0.2.1:1".parse().unwrap()];
        let near = ["127.0.0.1:1".parse().unwrap()];
        let secret = Identity::Secret(Secret::random().unwrap());
        let files = Certificates { ca: "ca".into(), certificate: "one".into(), key: "key".into() };
        for identity in [&secret, &Identity::Certificates(files)] {
            let error = Access::new(identity, &far, false).unwrap_err();
            assert!(matches!(error, AccessError::Identity(IdentityError::NoTls)), "{error}");
            assert!(error.to_string().contains("feature `tls`"), "{error}");
        }
        // Within a machine, the secret alone decides.
        assert!(Access::new(&secret, &near, false).is_ok());
    }
}
