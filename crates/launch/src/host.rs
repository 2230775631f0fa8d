//! A machine that tasks run on.

use crate::{Error, Result};
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Another machine, reached by ssh.
///
/// ```
/// use distribute_launch::Host;
/// let host: Host = "me@node-1".parse()?;
/// assert_eq!(host.destination(), "me@node-1"); // what ssh is given
/// assert_eq!(host.address(2222), "node-1:2222"); // what the other tasks connect to
/// # Ok::<(), distribute_launch::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    destination: String,
    name: String,
}

impl Host {
    /// What ssh is told to connect to: `host` or `user@host`.
    pub fn destination(&self) -> &str {
        &self.destination
    }

    /// Its name, by which the other tasks find it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address of a port on it.
    pub fn address(&self, port: u16) -> String {
        match self.name.parse::<Ipv6Addr>() {
            Ok(_) => format!("[{}]:{port}", self.name),
            Err(_) => format!("{}:{port}", self.name),
        }
    }

    /// Whether the name means the machine that asks.
    pub fn is_loopback(&self) -> bool {
        let name = self.name.trim_end_matches('.').to_ascii_lowercase();
        match name.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().is_loopback() || ip.to_canonical().is_unspecified(),
            Err(_) => name == "localhost" || name == "localhost.localdomain" || name.ends_with(".localhost"),
        }
    }
}

impl FromStr for Host {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem| Err(Error::Host { host: text.into(), problem });
        let name = text.rsplit_once('@').map_or(text, |(_, name)| name);
        let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if name.is_empty() {
            return refuse("is no name of a host; separate names by single commas");
        }
        // ssh would take it for an option, such as one that runs a command here.
        if text.starts_with('-') || name.starts_with('-') {
            return refuse("begins with a dash");
        }
        if name.contains(':') && name.parse::<Ipv6Addr>().is_err() {
            return refuse("has a colon; give ssh's port as --ssh \"ssh -p PORT\", and the tasks' as --port-base");
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
        if !name.chars().all(plain) || text.contains(char::is_whitespace) || text.contains(char::is_control) {
            return refuse("has characters that no name of a host has");
        }
        let user = text.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        Ok(Host { destination: format!("{user}{name}"), name: name.into() })
    }
}

/// The hosts of a list such as `a,b,me@c`.
///
/// # Errors
/// [`Error::Host`] for what is no name of a host.
pub fn parse_hosts(list: &str) -> Result<Vec<Host>> {
    list.split(',').map(|host| host.trim().parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read() {
        let hosts = parse_hosts("a, b.example,me@10.0.0.7,[fe80::1],::1").unwrap();
        let shown: Vec<_> = hosts.iter().map(|h| (h.destination().to_string(), h.address(80))).collect();
        let expected = [
            ("a", "a:80"),
            ("b.example", "b.example:80"),
            ("me@10.0.0.7", "10.0.0.7:80"),
            ("fe80::1", "[fe80::1]:80"),
            ("::1", "[::1]:80"),
        ];
        assert_eq!(shown, expected.map(|(a, b)| (a.to_string(), b.to_string())));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (name, words) in [
            ("", "no name"),
            ("me@", "no name"),
            ("-oProxyCommand=id", "dash"),
            ("me@-oProxyCommand=id", "dash"),
            ("a:22", "--ssh"),
            ("a;id", "characters"),
            ("a b", "characters"),
            ("a\n", "characters"),
            ("$(id)", "characters"),
        ] {
            let error = name.parse::<Host>().unwrap_err().to_string();
            assert!(error.contains(words) && error.starts_with("--hosts: "), "{name:?}: {error}");
        }
        assert!(parse_hosts("a,,b").is_err());
    }

    #[test]
    fn loopback_is_known_by_all_its_names() {
        for name in ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"] {
            assert!(name.parse::<Host>().unwrap().is_loopback(), "{name}");
        }
        for name in ["a", "10.0.0.1", "localhost.example", "fe80::1"] {
            assert!(!name.parse::<Host>().unwrap().is_loopback(), "{name}");
        }
    }
}
