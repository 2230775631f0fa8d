//! The secret of a job.

use super::IdentityError;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{hkdf, hmac};
use std::fmt::{self, Write};
use std::path::Path;

/// The environment variable that contains the secret of the job, as 64 hexadecimal digits.
pub const VARIABLE: &str = "DISTRIBUTE_SECRET";

/// A secret of 32 bytes that only the processes of one job know. It is never sent, and `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Creates a random secret.
    ///
    /// # Errors
    /// - [`IdentityError::Random`]: the system does not provide random numbers.
    pub fn random() -> Result<Self, IdentityError> {
        random().map(Self)
    }

    /// Returns the secret in the environment variable [`VARIABLE`], or `None` if it is not set.
    ///
    /// # Errors
    /// Returns the errors of [`from_hex`](Self::from_hex).
    pub fn from_env() -> Result<Option<Self>, IdentityError> {
        let Some(text) = std::env::var_os(VARIABLE) else { return Ok(None) };
        Self::from_hex(&text.to_string_lossy(), VARIABLE).map(Some)
    }

    /// Reads a secret from a file of hexadecimal digits. Logs a warning if other users can read or write the file.
    ///
    /// # Errors
    /// Returns the errors of [`from_hex`](Self::from_hex), and [`IdentityError::File`] if the file cannot be read.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, IdentityError> {
        let path = path.as_ref();
        let text = super::certificates::read_private(path, "secret of the job")?;
        Self::from_hex(&String::from_utf8_lossy(&text), &path.display().to_string())
    }

    /// Creates a secret from hexadecimal digits. `origin` is the source of the digits, for errors.
    ///
    /// # Errors
    /// - [`IdentityError::Secret`]: the text is not 64 hexadecimal digits.
    /// - [`IdentityError::Zeros`]: all digits are 0.
    pub fn from_hex(text: &str, origin: &str) -> Result<Self, IdentityError> {
        let malformed = || IdentityError::Secret { origin: origin.to_owned() };
        let digits = text.trim().as_bytes();
        if digits.len() != 64 {
            return Err(malformed());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            for digit in pair {
                let value = char::from(*digit).to_digit(16).ok_or_else(malformed)?;
                *byte = (*byte << 4) | value as u8;
            }
        }
        if bytes == [0; 32] {
            return Err(IdentityError::Zeros { origin: origin.to_owned() });
        }
        Ok(Self(bytes))
    }

    /// Returns the hexadecimal digits, for the environment of a process that joins. Do not display or log them.
    pub fn to_hex(&self) -> String {
        self.0.iter().fold(String::with_capacity(64), |mut text, byte| {
            // Writing into a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Returns the key with which a process proves that it knows this secret.
    pub(crate) fn proof_key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, &self.derive(b"distribute proof"))
    }

    /// Derives 32 bytes for one purpose. Neither the secret nor the bytes for other purposes can be computed from them.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        let mut bytes = [0; 32];
        let salt = hkdf::Salt::new(hkdf::HKDF_SHA256, b"distribute-net 1").extract(&self.0);
        // This fails only for lengths that are too large, which 32 is not.
        let filled = salt.expand(&[purpose], hkdf::HKDF_SHA256).and_then(|okm| okm.fill(&mut bytes));
        debug_assert!(filled.is_ok());
        bytes
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// Returns 32 random bytes from the system.
///
/// # Errors
/// Returns [`IdentityError::Random`] if the system has no random numbers.
pub(crate) fn random() -> Result<[u8; 32], IdentityError> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| IdentityError::Random)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_and_files_give_the_secret_and_nothing_shows_it() {
        let text = "00ff".repeat(16);
        let secret = Secret::from_hex(&format!(" {text}\n"), "a test").unwrap();
        assert_eq!(secret.to_hex(), text);
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
        let shown = format!("{:?}", super::super::Identity::Secret(secret.clone()));
        assert!(!shown.contains("ff") && !shown.contains("255"), "{shown}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, &text).unwrap();
        assert_eq!(Secret::from_file(&path).unwrap(), secret);
        assert_ne!(secret.derive(b"a"), secret.derive(b"b"));
        assert_ne!(secret.derive(b"a"), Secret::random().unwrap().derive(b"a"));
    }

    #[test]
    fn an_invalid_secret_is_refused_without_showing_it() {
        for text in ["", "12", &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            let error = Secret::from_hex(text, "DISTRIBUTE_SECRET").unwrap_err().to_string();
            assert!(error.starts_with("the secret of the job in DISTRIBUTE_SECRET is not 64"), "{error}");
        }
        let error = Secret::from_hex(&"0".repeat(64), "a test").unwrap_err().to_string();
        assert!(error.contains("in a test consists of zeros"), "{error}");
        let error = Secret::from_file("/nowhere/secret").unwrap_err().to_string();
        assert!(error.contains("cannot be read from /nowhere/secret"), "{error}");
    }
}
