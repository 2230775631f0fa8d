//! The environment variables that resolvers read, from this process or from a map.

use crate::malformed::shown;
use crate::{ClusterError, Malformed};
use std::collections::{BTreeMap, HashMap};

/// A source of the environment variables that resolvers read: this process, or a map in a test.
pub trait Environment {
    /// Returns the value of a variable, or `None` if it is not set.
    fn get(&self, name: &str) -> Option<String>;
}

/// The environment variables of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        // A value that is not Unicode is refused by the code that parses it, which shows the lossy text.
        Some(std::env::var_os(name)?.to_string_lossy().into_owned())
    }
}

impl Environment for BTreeMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        BTreeMap::get(self, name).cloned()
    }
}

impl Environment for HashMap<String, String> {
    fn get(&self, name: &str) -> Option<String> {
        HashMap::get(self, name).cloned()
    }
}

impl<const N: usize> Environment for [(&str, &str); N] {
    fn get(&self, name: &str) -> Option<String> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
    }
}

/// Returns the value of a variable that must be set. If it is not set, returns [`ClusterError::NotSet`], in which
/// `remedy` explains how to set it.
pub(crate) fn required(
    environment: &dyn Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<String, ClusterError> {
    environment.get(name).ok_or(ClusterError::NotSet { variable: name, remedy })
}

/// Returns the error for a variable with an unexpected value. `expected` describes a valid value.
pub(crate) fn unexpected(name: &str, expected: impl Into<String>, found: &str) -> ClusterError {
    let found = shown(&format_args!("{found:?}"));
    Malformed { origin: name.into(), path: String::new(), expected: expected.into(), found, help: "" }.into()
}

/// Parses the number in a variable; `None` if the variable is not set.
///
/// # Errors
/// Returns [`ClusterError::Malformed`] if the value is not a whole number.
pub(crate) fn number(environment: &dyn Environment, name: &str) -> Result<Option<usize>, ClusterError> {
    let Some(text) = environment.get(name) else { return Ok(None) };
    let number = text.trim().parse();
    number.map(Some).map_err(|_| unexpected(name, "a whole number from 0", &text))
}

/// Parses the number in a variable that must be set.
///
/// # Errors
/// - [`ClusterError::NotSet`]: the variable is not set; `remedy` explains how to set it.
/// - [`ClusterError::Malformed`]: the value is not a whole number.
pub(crate) fn required_number(
    environment: &dyn Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<usize, ClusterError> {
    number(environment, name)?.ok_or(ClusterError::NotSet { variable: name, remedy })
}
