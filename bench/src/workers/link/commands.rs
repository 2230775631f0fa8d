//! The commands that create a link between two hosts, as a pure function.

use super::rate::Rate;
use crate::hosts::{Host, Hosts};

/// The name of the network device on each host. `bench/peers/common.py` contains the same name.
const DEVICE: &str = "link0";

/// The maximum queueing delay. Further packets are dropped, as by any network card whose queue is full.
const QUEUE: &str = "50ms";

/// Returns the commands that link two hosts, in order. Each is paired with the host on which it must run.
///
/// Both ends are limited: a token bucket delays packets that leave a host. Incoming packets are not delayed.
pub fn commands(hosts: &Hosts, rate: Rate) -> Vec<(Host, Vec<String>)> {
    let mut all = Vec::new();
    let mut push = |host: &Host, text: String| {
        all.push((*host, text.split_whitespace().map(String::from).collect()));
    };
    if let Some(other) = hosts.all().last() {
        let peer = format!("type veth peer name {DEVICE} netns {}", other.keeper());
        push(hosts.first(), format!("ip link add name {DEVICE} {peer}"));
    }
    for host in hosts.all() {
        push(host, format!("ip address add {}/24 dev {DEVICE}", host.address()));
        push(host, "ip link set lo up".into());
        push(host, format!("ip link set {DEVICE} up"));
        if let Rate::Limited(bits) = rate {
            let limit = format!("rate {bits}bit burst {}b latency {QUEUE}", Rate::burst(bits));
            push(host, format!("tc qdisc add dev {DEVICE} root tbf {limit}"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(rate: Rate) -> Vec<String> {
        let hosts = [Host::new([10, 0, 0, 1].into(), 12), Host::new([10, 0, 0, 2].into(), 34)];
        let all = commands(&Hosts::new(hosts), rate).into_iter();
        all.map(|(host, words)| format!("{}: {}", host.keeper(), words.join(" "))).collect()
    }

    #[test]
    fn both_ends_have_an_address_and_the_limit() {
        let limit = "tc qdisc add dev link0 root tbf rate 1000000000bit burst 80000b latency 50ms";
        assert_eq!(
            text(Rate::Limited(1_000_000_000)),
            [
                "12: ip link add name link0 type veth peer name link0 netns 34",
                "12: ip address add 10.0.0.1/24 dev link0",
                "12: ip link set lo up",
                "12: ip link set link0 up",
                &format!("12: {limit}"),
                "34: ip address add 10.0.0.2/24 dev link0",
                "34: ip link set lo up",
                "34: ip link set link0 up",
                &format!("34: {limit}"),
            ]
        );
    }

    #[test]
    fn an_unlimited_link_is_not_limited() {
        assert!(text(Rate::Unlimited).iter().all(|command| !command.contains("tc ")));
        assert_eq!(text(Rate::Unlimited).len(), 7);
    }
}
