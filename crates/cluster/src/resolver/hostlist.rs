//! The parser of Slurm's short forms of host lists and task counts.

use crate::environment::unexpected;
use crate::error::ClusterError;

/// The maximum number of hosts, so that a typo of a few characters cannot exhaust the memory.
const MAX: usize = 65_536;

/// The origin in errors about a host list, until the resolver replaces it with the name of the variable.
const HOSTS: &str = "host list";
/// The origin in errors about numbers of tasks, which is replaced in the same way.
const TASKS: &str = "tasks per node";

/// Expands Slurm's short form of a host list, keeping its order: `n1,t[2-4,7],x[08-10]` becomes n1, t2, t3, t4, t7,
/// x08, x09, x10.
///
/// ```
/// use distribute_cluster::resolver::expand_hostlist;
/// assert_eq!(expand_hostlist("n1,x[08-10]")?, ["n1", "x08", "x09", "x10"]);
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
///
/// # Errors
/// - [`ClusterError::Malformed`]: the text is not a host list, or has more than 65 536 hosts.
#[doc(alias = "tf.distribute.cluster_resolver.SlurmClusterResolver")]
#[doc(alias = "SlurmClusterResolver")]
pub fn expand_hostlist(text: &str) -> Result<Vec<String>, ClusterError> {
    let wrong = || unexpected(HOSTS, "hosts such as n1,n[2-4,07]", text);
    let mut hosts = Vec::new();
    for part in split(text).ok_or_else(wrong)? {
        match part.split_once('[') {
            None => hosts.push(part.to_string()),
            Some((prefix, rest)) => {
                let ranges = rest.strip_suffix(']').ok_or_else(wrong)?;
                for range in ranges.split(',') {
                    let (from, to) = range.split_once('-').unwrap_or((range, range));
                    let number = |text: &str| text.parse::<u32>().ok().filter(|_| digits(text));
                    let (first, last) = number(from).zip(number(to)).ok_or_else(wrong)?;
                    let count = (u64::from(last) + 1).saturating_sub(u64::from(first));
                    if hosts.len() as u64 + count > MAX as u64 {
                        return Err(unexpected(HOSTS, format!("at most {MAX} hosts"), text));
                    }
                    let width = from.len();
                    hosts.extend((first..=last).map(|number| format!("{prefix}{number:0width$}")));
                }
            }
        }
        if hosts.len() > MAX {
            return Err(unexpected(HOSTS, format!("at most {MAX} hosts"), text));
        }
    }
    Ok(hosts)
}

/// Splits text at commas outside brackets. Returns `None` if brackets do not match, or if a part is empty. The
/// list may end with a comma.
fn split(text: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, c) in text.char_indices() {
        match (c, inside) {
            ('[', false) => inside = true,
            (']', true) => inside = false,
            ('[', true) | (']', false) => return None,
            (',', false) => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if start < text.len() {
        parts.push(&text[start..]);
    }
    (!inside && parts.iter().all(|part| !part.is_empty())).then_some(parts)
}

fn digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Expands Slurm's short form of task counts per node: `3(x2),1` becomes 3, 3, 1.
///
/// ```
/// use distribute_cluster::resolver::expand_tasks_per_node;
/// assert_eq!(expand_tasks_per_node("3(x2),1")?, [3, 3, 1]);
/// # Ok::<(), distribute_cluster::ClusterError>(())
/// ```
///
/// # Errors
/// - [`ClusterError::Malformed`]: the text is not such a list, or has more than 65 536 nodes.
pub fn expand_tasks_per_node(text: &str) -> Result<Vec<usize>, ClusterError> {
    let mut tasks = Vec::new();
    for part in text.split(',') {
        let read = || {
            let (count, times) = match part.split_once("(x") {
                Some((count, times)) => (count, times.strip_suffix(')')?),
                None => (part, "1"),
            };
            let number = |text: &str| text.parse::<usize>().ok().filter(|_| digits(text));
            number(count).zip(number(times))
        };
        let (count, times) =
            read().ok_or_else(|| unexpected(TASKS, "numbers of tasks such as 3(x2),1", text))?;
        if times > MAX - tasks.len() {
            return Err(unexpected(TASKS, format!("at most {MAX} nodes"), text));
        }
        tasks.extend(std::iter::repeat_n(count, times));
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // RES-4
    #[test]
    fn res_4_hosts_keep_their_zeros_and_their_order() {
        let hosts = |text| expand_hostlist(text).unwrap().join(" ");
        assert_eq!(hosts("n1,t[2-4,7],x[08-10]"), "n1 t2 t3 t4 t7 x08 x09 x10");
        assert_eq!(hosts("[03-03,02],a1b"), "03 02 a1b");
        assert_eq!(hosts("n[9-11],n[9]"), "n9 n10 n11 n9");
        assert_eq!(hosts("a,"), "a");
        assert_eq!((hosts(""), hosts("n[3-1]")), (String::new(), String::new()));
    }

    // RES-4
    #[test]
    fn res_4_an_invalid_host_list_is_refused() {
        for text in [
            "n[1-2", "n]1", "n[1-2]m", "n[a-b]", "n[1-2-3]", ",a", "a,,b", "n[[1]]", "n[]", "n[1,]", "n[+1]",
            "n[1][",
        ] {
            let error = expand_hostlist(text).unwrap_err().to_string();
            assert!(error.starts_with("host list: expected hosts such as"), "{text}: {error}");
        }
        for text in ["n[0-99999]", "n[0-4294967295]", "n[0-40000],m[0-40000]"] {
            assert!(expand_hostlist(text).unwrap_err().to_string().contains("at most 65536 hosts"), "{text}");
        }
    }

    // RES-4
    #[test]
    fn res_4_tasks_are_repeated() {
        assert_eq!(expand_tasks_per_node("3(x2),4,1").unwrap(), [3, 3, 4, 1]);
        assert_eq!(expand_tasks_per_node("2(x0)").unwrap(), [0; 0]);
        for text in
            ["", "a", "1,", "2(3)", "(x2)", "2 (x2)", "-1", "2(x)", "2(x1", "1(x65537)", "1(x65536),1"]
        {
            assert!(expand_tasks_per_node(text).is_err(), "{text}");
        }
    }

    proptest! {
        // RES-4: hosts written in the short form expand to the original list.
        #[test]
        fn res_4_lists_round_trip(
            groups in prop::collection::vec(
                ("[a-z][a-z0-9-]{0,5}", prop::collection::vec((0u32..2000, 0u32..12, 1usize..6), 0..4)), 0..5,
            ),
        ) {
            let (mut text, mut hosts) = (Vec::new(), Vec::new());
            for (prefix, ranges) in groups {
                let mut parts = Vec::new();
                for (first, more, width) in &ranges {
                    let (last, zeros) = (first + more, format!("{first:0width$}"));
                    parts.push(if *more == 0 { zeros.clone() } else { format!("{zeros}-{last}") });
                    let width = zeros.len();
                    hosts.extend((*first..=last).map(|number| format!("{prefix}{number:0width$}")));
                }
                if ranges.is_empty() {
                    hosts.push(prefix.clone());
                }
                text.push(if ranges.is_empty() { prefix } else { format!("{prefix}[{}]", parts.join(",")) });
            }
            prop_assert_eq!(expand_hostlist(&text.join(",")).unwrap(), hosts);
        }

        #[test]
        fn res_4_counts_round_trip(groups in prop::collection::vec((0usize..200, 0usize..9), 1..6)) {
            let text: Vec<String> = groups.iter().map(|(count, times)| match times {
                1 => count.to_string(),
                _ => format!("{count}(x{times})"),
            }).collect();
            let counts: Vec<usize> = groups.iter().flat_map(|(count, times)| vec![*count; *times]).collect();
            prop_assert_eq!(expand_tasks_per_node(&text.join(",")).unwrap(), counts);
        }

        #[test]
        fn any_text_is_a_list_or_an_error(text in "[a-z0-9,\\[\\]()x-]{0,24}|.{0,12}") {
            let _ = expand_hostlist(&text);
            let _ = expand_tasks_per_node(&text);
        }
    }
}
