//! Alternating rounds of this library and others, so that disturbances of the machine affect all of them equally. A
//! process is stopped while others are measured, so each round has the machine to itself.

use super::figure::{Beside, Effort, Figure, Role};
use super::peers::{self, Entry, Process};
use super::recorded;
use super::report::{Report, Rival};
use super::sample::Sample;
use super::statistics::Summary;
use crate::output::remark;
use distribute::Result;

/// An alternative that takes turns with this library.
enum Other {
    Beside(Beside),
    Peer(Process),
}

impl Other {
    fn round(&mut self, effort: Effort) -> Result<Sample> {
        match self {
            Self::Beside(beside) => (beside.round)(effort),
            Self::Peer(process) => process.round(effort.seconds),
        }
    }
}

/// Measures a figure in the given number of rounds, after one round of this library that does not count. An alternative
/// that fails is reported on stderr and omitted. If no peer in another process is left, the recorded values are added.
pub fn measure(figure: &dyn Figure, effort: Effort, rounds: usize, peers: &[Entry]) -> Result<Report> {
    let (about, rounds) = (figure.about(), figure.rounds(rounds));
    let mut others: Vec<_> = figure.beside().into_iter().map(|b| (Other::Beside(b), Vec::new())).collect();
    let (theirs, hosts) = (figure.peers(), figure.hosts());
    let started = peers.iter().filter(|entry| entry.figure == theirs);
    let started: Vec<_> = started.map(|entry| (entry, entry.start(hosts))).collect();
    for (entry, process) in started {
        match process.and_then(Process::greeted) {
            Ok(process) => others.push((Other::Peer(process), Vec::new())),
            Err(error) => remark(format!("{}: {} is left out: {error}", about.name, entry.peer)),
        }
    }
    let mut we = peers::ours(&about.name, hosts)?.greeted()?;
    // A first round does not count: it fills caches, faults in pages and starts the team's threads.
    we.round(effort.seconds)?;
    let mut ours = Vec::new();
    for _ in 0..rounds {
        ours.push(we.round(effort.seconds)?);
        others.retain_mut(|(other, samples)| match other.round(effort) {
            Ok(sample) => {
                samples.push(sample);
                true
            }
            Err(error) => {
                remark(format!("{}: a peer is left out: {error}", about.name));
                false
            }
        });
    }
    let mut rivals: Vec<_> =
        others.into_iter().map(|(other, samples)| rival(other, &samples, &ours)).collect();
    if rivals.iter().all(|rival| rival.role != Role::Peer || rival.in_process) {
        rivals.extend(recorded::of(&about.name));
    }
    Ok(Report { about, ours: summary(&ours), sent: sent(&ours), rounds, rivals })
}

fn summary(samples: &[Sample]) -> Summary {
    Summary::of(&samples.iter().map(|sample| sample.value).collect::<Vec<_>>())
}

/// Returns the median of the numbers of bytes sent per step, if the samples contain any.
fn sent(samples: &[Sample]) -> Option<f64> {
    let all: Vec<_> = samples.iter().filter_map(|sample| sample.sent).collect();
    (!all.is_empty()).then(|| Summary::of(&all).median)
}

fn rival(other: Other, samples: &[Sample], ours: &[Sample]) -> Rival {
    let (name, version, role, in_process) = match other {
        Other::Beside(beside) => (beside.name, beside.version.to_string(), beside.role, true),
        Other::Peer(process) => (process.peer.clone(), process.version.clone(), Role::Peer, false),
    };
    let difference = match (ours.first(), samples.first()) {
        (Some(a), Some(b)) if !a.losses.is_empty() => Some(difference(&a.losses, &b.losses)),
        _ => None,
    };
    let (values, sent) = (summary(samples), sent(samples));
    Rival { name, version, values, sent, role, in_process, difference, recorded: None }
}

/// Returns the maximum difference between two series. It is infinite if their lengths differ.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    if a.len() == b.len() {
        a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0., f64::max)
    } else {
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_differ_by_their_greatest_difference() {
        assert_eq!(difference(&[1., 2., 3.], &[1., 2.5, 2.75]), 0.5);
        assert_eq!(difference(&[1.], &[]), f64::INFINITY);
    }

    #[test]
    fn bytes_are_those_of_the_rounds_that_counted_them() {
        let counted = |bytes| Sample { sent: Some(bytes), ..Sample::from(1.) };
        assert_eq!(sent(&[counted(4.), counted(8.), counted(5.)]), Some(5.));
        assert_eq!(sent(&[Sample::from(1.)]), None);
    }
}
