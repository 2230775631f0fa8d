//! What a process was started with: environment variables, from wherever they come.

use crate::malformed::shown;
use crate::{ClusterError, Malformed};
use std::collections::{BTreeMap, HashMap};

/// Where resolvers look up environment variables: those of this process, or a map of a test.
pub trait Environment {
    /// The value of a variable; `None` where it is not set.
    fn get(&self, name: &str) -> Option<String>;
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn get(&self, name: &str) -> Option<String> {
        // What is no Unicode is refused by what reads it, with what can be shown of it.
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

/// A variable that has to be set; `remedy` says how it comes to be.
pub(crate) fn required(
    environment: &dyn Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<String, ClusterError> {
    environment.get(name).ok_or(ClusterError::NotSet { variable: name, remedy })
}

/// A value of a variable that should be another.
pub(crate) fn unexpected(name: &str, expected: impl Into<String>, found: &str) -> ClusterError {
    let found = shown(&format_args!("{found:?}"));
    Malformed { origin: name.into(), path: String::new(), expected: expected.into(), found, help: "" }.into()
}

/// A number that a variable may hold.
pub(crate) fn number(environment: &dyn Environment, name: &str) -> Result<Option<usize>, ClusterError> {
    let Some(text) = environment.get(name) else { return Ok(None) };
    let number = text.trim().parse();
    number.map(Some).map_err(|_| unexpected(name, "a whole number from 0", &text))
}

/// A number that a variable has to hold.
pub(crate) fn required_number(
    environment: &dyn Environment,
    name: &'static str,
    remedy: &'static str,
) -> Result<usize, ClusterError> {
    number(environment, name)?.ok_or(ClusterError::NotSet { variable: name, remedy })
}
