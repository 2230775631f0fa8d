//! The calls that sessions make repeatedly, whose digests are computed once.

use distribute_cluster::{Fingerprint, Operation, Presence, ReplicaStatus};
use std::sync::Arc;

/// The maximum number of calls, and of parts of calls, that are kept. A step makes fewer, mostly.
const MAX_KEPT: usize = 32;

/// The digests and details of the calls that a session made last.
///
/// An entry is found by the same values that [`Fingerprint::digest`] hashes, so a call that differs from all earlier
/// ones is never mistaken for one of them. What workers compare is unchanged: they send each other the digest in every
/// call. An entry has no source location, which repeated calls may change.
#[derive(Debug, Default)]
pub(super) struct RepeatedCalls {
    digests: Digests,
    parts: Parts,
}

type Digests = Recent<(Operation, Arc<str>), u64>;
type Parts = Recent<(Arc<str>, Box<str>), Arc<str>>;

/// A small map that replaces its oldest entry when it is full.
#[derive(Debug)]
struct Recent<K, V> {
    entries: Vec<(K, V)>,
    /// The index of the entry that was found last. Calls are mostly repeated in a row.
    last: usize,
    oldest: usize,
}

impl RepeatedCalls {
    /// Returns the digest of a call: the same as [`Fingerprint::digest`].
    pub fn digest(&mut self, call: &Fingerprint) -> u64 {
        digest(&mut self.digests, call.operation, &call.detail, || call.digest())
    }

    /// Returns the detail and the digest of a call or, if `part` is given, of this part of the call.
    pub fn find<'a>(&'a mut self, call: &'a Fingerprint, part: Option<&str>) -> (&'a Arc<str>, u64) {
        let Some(part) = part else { return (&call.detail, self.digest(call)) };
        let detail = find_part(&mut self.parts, &call.detail, part);
        let new = || Fingerprint { detail: detail.clone(), ..call.clone() }.digest();
        (detail, digest(&mut self.digests, call.operation, detail, new))
    }

    /// Changes the calls of replicas to the part `part` of these calls.
    pub fn enter_part(&mut self, statuses: &mut [ReplicaStatus], part: &str) {
        for status in statuses {
            if let Presence::Waiting(call) = &mut status.presence {
                call.detail = find_part(&mut self.parts, &call.detail, part).clone();
            }
        }
    }
}

/// Returns the digest of a call, which `new` computes if the call is not known.
fn digest(digests: &mut Digests, operation: Operation, detail: &Arc<str>, new: impl FnOnce() -> u64) -> u64 {
    let is_same = |(known, text): &(Operation, Arc<str>)| *known == operation && is_same_text(text, detail);
    *digests.find_or_insert(is_same, || ((operation, detail.clone()), new()))
}

/// Returns the detail of a part of the call with the given detail.
fn find_part<'a>(parts: &'a mut Parts, detail: &Arc<str>, part: &str) -> &'a Arc<str> {
    let is_same = |(text, name): &(Arc<str>, Box<str>)| **name == *part && is_same_text(text, detail);
    parts.find_or_insert(is_same, || ((detail.clone(), part.into()), format!("{detail}: {part}").into()))
}

/// Returns whether two texts are equal. Compares their addresses first, because most repeated calls share a text.
fn is_same_text(one: &Arc<str>, other: &Arc<str>) -> bool {
    Arc::ptr_eq(one, other) || **one == **other
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { entries: Vec::new(), last: 0, oldest: 0 }
    }
}

impl<K, V> Recent<K, V> {
    /// Returns the value of the key that `is_same` accepts. If there is none, inserts the entry that `new` returns, and
    /// returns its value.
    fn find_or_insert(&mut self, is_same: impl Fn(&K) -> bool, new: impl FnOnce() -> (K, V)) -> &V {
        if !self.entries.get(self.last).is_some_and(|(key, _)| is_same(key)) {
            self.last = match self.entries.iter().position(|(key, _)| is_same(key)) {
                Some(at) => at,
                None if self.entries.len() < MAX_KEPT => {
                    self.entries.push(new());
                    self.entries.len() - 1
                }
                None => {
                    let at = self.oldest;
                    self.oldest = (at + 1) % MAX_KEPT;
                    self.entries[at] = new();
                    at
                }
            };
        }
        &self.entries[self.last].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::Location;

    fn call(operation: Operation, detail: &str) -> Fingerprint {
        Fingerprint::new(operation, detail, Location::caller())
    }

    #[test]
    fn digests_and_parts_are_those_of_the_call_for_any_number_of_calls() {
        let mut calls = RepeatedCalls::default();
        let operations = [Operation::AllReduce, Operation::AllGather];
        let details: Vec<_> = (0..3 * MAX_KEPT).map(|n| format!("SUM float32[{n}]")).collect();
        for round in 0..3 {
            for (at, detail) in details.iter().enumerate() {
                let one = call(operations[(at + round) % 2], detail);
                for _ in 0..2 {
                    assert_eq!(calls.digest(&one), one.digest(), "{one}");
                }
                for part in ["its data", "its sums"] {
                    let mut statuses = [ReplicaStatus::waiting(0, one.clone()), ReplicaStatus::running(1)];
                    calls.enter_part(&mut statuses, part);
                    let got = statuses[0].call().unwrap();
                    assert_eq!((&*got.detail, &got.at), (&*format!("{detail}: {part}"), &one.at));
                    assert_eq!(calls.digest(got), got.digest());
                    assert_eq!(calls.find(&one, Some(part)), (&got.detail, got.digest()));
                }
            }
        }
        assert!(calls.digests.entries.len() <= MAX_KEPT && calls.parts.entries.len() <= MAX_KEPT);
    }

    // A changed operation, detail or part after many equal calls is another number.
    #[test]
    fn a_call_that_changes_after_many_is_not_taken_for_them() {
        let mut calls = RepeatedCalls::default();
        let one = call(Operation::AllReduce, "SUM float32[2]");
        let digests: Vec<_> = (0..1_000).map(|_| calls.digest(&one)).collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]));
        for other in [
            call(Operation::AllGather, "SUM float32[2]"),
            call(Operation::AllReduce, "MEAN float32[2]"),
            call(Operation::AllReduce, "SUM float32[3]"),
            call(Operation::AllReduce, "SUM float64[2]"),
        ] {
            assert_ne!(calls.digest(&other), digests[0], "{other}");
            assert_eq!(calls.digest(&one), digests[0]);
        }
        // The location is not compared, but errors name that of the current call.
        let elsewhere = call(Operation::AllReduce, "SUM float32[2]");
        let mut statuses = [ReplicaStatus::waiting(0, elsewhere.clone())];
        calls.enter_part(&mut statuses, "its data");
        assert_eq!(statuses[0].call().unwrap().at, elsewhere.at);
        assert_eq!(calls.digest(&elsewhere), digests[0]);
    }
}
