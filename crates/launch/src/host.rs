//! [`RemoteHost`]: another machine on which tasks run.

use crate::{Error, Result};
use distribute_cluster::{Address, Host};
use std::str::FromStr;

/// Another machine, on which tasks are started over ssh.
///
/// ```
/// use distribute_launch::RemoteHost;
/// let host: RemoteHost = "me@node-1".parse()?;
/// assert_eq!(host.destination(), "me@node-1"); // what ssh is given
/// assert_eq!(host.address(2222).to_string(), "node-1:2222"); // where the other tasks find it
/// # Ok::<(), distribute_launch::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHost {
    destination: String,
    host: Host,
}

impl RemoteHost {
    /// Returns the destination that is passed to ssh: `host` or `user@host`.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Returns the host name or IP address to which the other tasks connect.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns the address of the given port on this host.
    pub fn address(&self, port: u16) -> Address {
        Address::new(self.host.clone(), port)
    }

    /// Returns whether the host is a loopback or unspecified address, which on each host means that host itself.
    pub fn is_loopback(&self) -> bool {
        self.host.is_loopback() || self.host.is_unspecified()
    }
}

impl FromStr for RemoteHost {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem| Error::Host { host: text.into(), problem };
        let (user, name) = text.rsplit_once('@').map_or((None, text), |(user, name)| (Some(user), name));
        // ssh would parse it as an option, for example one that runs a local command.
        if text.starts_with('-') || name.starts_with('-') {
            return Err(refuse("it begins with a dash"));
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if user.is_some_and(|user| user.is_empty() || !user.chars().all(plain)) {
            return Err(refuse("no user name before the @"));
        }
        if name.matches(':').count() == 1 {
            return Err(refuse(
                "it has a port; give ssh's as --ssh \"ssh -p PORT\", and the tasks' as --port-base",
            ));
        }
        let bracketed =
            if name.contains(':') && !name.starts_with('[') { format!("[{name}]") } else { name.into() };
        let host: Host = bracketed.parse().map_err(refuse)?;
        // ssh expects IPv6 addresses without brackets.
        let bare = host.to_string();
        let bare = bare.trim_start_matches('[').trim_end_matches(']');
        let destination = user.map_or(bare.into(), |user| format!("{user}@{bare}"));
        Ok(Self { destination, host })
    }
}

/// Parses a comma-separated list of hosts, such as `a,b,me@c`.
///
/// # Errors
/// - [`Error::Host`]: a host name is invalid.
pub fn parse_hosts(list: &str) -> Result<Vec<RemoteHost>> {
    list.split(',').map(|host| host.trim().parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let hosts = parse_hosts("a, b.example,me@10.0.0.7,me@[fe80::1],::1").unwrap();
        let shown: Vec<_> =
            hosts.iter().map(|h| (h.destination().to_string(), h.address(80).to_string())).collect();
        let expected = [
            ("a", "a:80"),
            ("b.example", "b.example:80"),
            ("me@10.0.0.7", "10.0.0.7:80"),
            ("me@fe80::1", "[fe80::1]:80"),
            ("::1", "[::1]:80"),
        ];
        assert_eq!(shown, expected.map(|(a, b)| (a.to_string(), b.to_string())));
    }

    #[test]
    fn an_invalid_name_is_refused() {
        for (name, words) in [
            ("", "no host"),
            ("me@", "no host"),
            ("@a", "no user"),
            ("m e@a", "no user"),
            ("-oProxyCommand=id", "dash"),
            ("me@-oProxyCommand=id", "dash"),
            ("a:22", "--ssh"),
            ("a;id", "letters"),
            ("a b", "letters"),
            ("a\n", "letters"),
            ("$(id)", "letters"),
        ] {
            let error = name.parse::<RemoteHost>().unwrap_err().to_string();
            assert!(error.contains(words) && error.starts_with("--hosts: "), "{name:?}: {error}");
        }
        assert!(parse_hosts("a,,b").is_err());
    }

    #[test]
    fn loopback_is_recognized_by_all_its_names() {
        for name in ["localhost", "a.localhost", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"] {
            assert!(name.parse::<RemoteHost>().unwrap().is_loopback(), "{name}");
        }
        for name in ["a", "10.0.0.1", "localhost.example", "fe80::1"] {
            assert!(!name.parse::<RemoteHost>().unwrap().is_loopback(), "{name}");
        }
    }
}
