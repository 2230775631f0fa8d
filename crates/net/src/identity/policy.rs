//! The protection of links, as pure functions.

use super::Identity;
use distribute_cluster::{Address, Task};

/// The protection of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No protection.
    Plain,
    /// Both sides prove that they know the secret of the job. Others can read the data.
    Proof,
    /// Links are encrypted, and each side verifies the other.
    Tls,
}

/// An error that prevents links between addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// An address can be reached from other machines, but there is neither a secret nor certificates, and plain text
    /// was not allowed. Any process could join.
    #[error(
        "{address} can be reached over the network, and any process could join this job and read its \
         weights: give all workers one DISTRIBUTE_SECRET (`openssl rand -hex 32` makes one), or \
         certificates; credentials(Credentials::new().allow_plain_text_on_the_network()) permits \
         unprotected links"
    )]
    PlainTextOnTheNetwork {
        /// An address that is not a loopback address.
        address: String,
    },
    /// Some addresses are loopback addresses, which other machines cannot reach, and some are not.
    #[error(
        "{loopback} of {task} is a loopback address, which other machines can't reach, and there are others \
         ({other}): give {task} an address of its machine in the network"
    )]
    LoopbackAmongSeveral {
        /// The task with the loopback address.
        task: Task,
        /// The loopback address.
        loopback: String,
        /// Another task's address, which is not a loopback address.
        other: String,
    },
}

/// Returns the protection of links between processes at the given addresses.
///
/// | addresses | no identity | secret | certificates |
/// |---|---|---|---|
/// | loopback | plain | proof | TLS |
/// | others | refused | TLS | TLS |
/// | others, with `allow_plain_text` | plain | proof | TLS |
///
/// # Errors
/// - [`PolicyError::PlainTextOnTheNetwork`]: an address is not loopback, there is no identity, and plain text is not
///   allowed.
pub fn protection(
    addresses: &[Address],
    identity: &Identity,
    allow_plain_text: bool,
) -> Result<Protection, PolicyError> {
    let far = addresses.iter().find(|address| !address.host().is_loopback());
    match (identity, far) {
        (Identity::Certificates(_), _) => Ok(Protection::Tls),
        (Identity::Secret(_), Some(_)) if !allow_plain_text => Ok(Protection::Tls),
        (Identity::Secret(_), _) => Ok(Protection::Proof),
        (Identity::None, Some(address)) if !allow_plain_text => {
            Err(PolicyError::PlainTextOnTheNetwork { address: address.to_string() })
        }
        (Identity::None, _) => Ok(Protection::Plain),
    }
}

/// Checks that either all addresses are loopback addresses, or none is. `task` returns the task of the worker with a
/// given index.
///
/// # Errors
/// - [`PolicyError::LoopbackAmongSeveral`]: some addresses are loopback and others are not.
pub fn check_hosts(addresses: &[Address], task: impl Fn(usize) -> Task) -> Result<(), PolicyError> {
    let is_loopback = |address: &Address| address.host().is_loopback();
    let Some(other) = addresses.iter().find(|address| !is_loopback(address)) else { return Ok(()) };
    match addresses.iter().enumerate().find(|(_, address)| is_loopback(address)) {
        Some((worker, loopback)) => Err(PolicyError::LoopbackAmongSeveral {
            task: task(worker),
            loopback: loopback.to_string(),
            other: other.to_string(),
        }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Certificates, Secret};
    use super::*;

    #[test]
    fn plain_text_leaves_the_machine_only_where_it_is_asked_for() {
        let secret = || Identity::Secret(Secret::random().unwrap());
        let certificates = || {
            let path = std::path::PathBuf::new;
            Identity::Certificates(Certificates { ca: path(), certificate: path(), key: path() })
        };
        let near: &[&str] = &["127.0.0.1:1", "localhost:2", "[::1]:3", "127.9.9.9:0"];
        let far: &[&str] = &["127.0.0.1:1", "10.0.0.7:2222"];
        let refused = PolicyError::PlainTextOnTheNetwork { address: "10.0.0.7:2222".into() };
        use Protection::{Plain, Proof, Tls};
        for (addresses, identity, allow, expected) in [
            (near, Identity::None, false, Ok(Plain)),
            (near, Identity::None, true, Ok(Plain)),
            (near, secret(), false, Ok(Proof)),
            (near, secret(), true, Ok(Proof)),
            (near, certificates(), false, Ok(Tls)),
            (near, certificates(), true, Ok(Tls)),
            (far, Identity::None, false, Err(refused)),
            (far, Identity::None, true, Ok(Plain)),
            (far, secret(), false, Ok(Tls)),
            (far, secret(), true, Ok(Proof)),
            (far, certificates(), false, Ok(Tls)),
            (far, certificates(), true, Ok(Tls)),
        ] {
            let addresses: Vec<_> =
                addresses.iter().map(|address| address.parse::<Address>().unwrap()).collect();
            assert_eq!(
                protection(&addresses, &identity, allow),
                expected,
                "{addresses:?} {identity:?} {allow}"
            );
        }
    }

    #[test]
    fn a_loopback_address_among_several_hosts_is_refused_by_name() {
        let all =
            |addresses: &[&str]| addresses.iter().map(|a| a.parse::<Address>().unwrap()).collect::<Vec<_>>();
        let check = |addresses: &[Address]| check_hosts(addresses, |worker| Task::new("worker", worker));
        assert_eq!(check(&all(&["127.0.0.1:1", "localhost:2"])), Ok(()));
        assert_eq!(check(&all(&["10.0.0.1:1", "10.0.0.2:1"])), Ok(()));
        let error = check(&all(&["10.0.0.1:1", "localhost:1"])).unwrap_err().to_string();
        assert!(error.starts_with("localhost:1 of worker 1 is a loopback address"), "{error}");
    }
}
