//! What the tasks of a job have in common, and nobody else knows.

use crate::{Error, Result};
use std::fmt::{self, Write as _};

/// The secret of a job: 32 random bytes, as 64 hexadecimal digits in `DISTRIBUTE_SECRET`. By it the tasks know each other.
/// It is never printed: `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// A new one, from the system's random numbers.
    ///
    /// # Errors
    /// [`Error::Random`] where the system has none.
    pub fn random() -> Result<Self> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(Error::Random)?;
        let mut hex = String::with_capacity(64);
        for byte in bytes {
            // Writing into a string does not fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Ok(Self(hex))
    }

    /// The digits, for the environment of a task.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_another_each_time_and_not_shown() {
        let (a, b) = (Secret::random().unwrap(), Secret::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.expose().len(), 64);
        assert!(a.expose().bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(format!("{a:?}"), "Secret(…)");
    }
}
